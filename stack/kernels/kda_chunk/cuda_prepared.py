"""KDA prefill in segments side by side, each chunk prepared by one kernel: gates, scores, triangular solve, W and U.

`prepare.cu` reads q, k, v and the gates once and writes what `segment_scan`, the serial part, takes. Serves BF16 rows
of heads of 128 values and gates of at least -5.2, whose sum over 16 tokens a BF16 exponent holds.
"""

import ctypes
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from stack.kernels.cuda_source import CudaKernel
from stack.kernels.devices import hopper_only
from stack.kernels.kda_chunk.segment_scan import Prepared, run_segments
from stack.kernels.kda_chunk.segments import CHUNK, Plan, begin_pass

missing = hopper_only

SHARED_BYTES = 5 * 64 * 272 + 64 * 144 + 4 * 16 * 20 * 4 + 4 * 16 * 24 * 2 + 4 * 128 * 4 + 64 * 4
_PREPARE = CudaKernel(Path(__file__).with_name("prepare.cu"), "kda_prepare", SHARED_BYTES)


class PrepareArguments(ctypes.Structure):
    """`PrepareArguments` of the source."""

    _fields_: ClassVar[Any] = (
        [(name, ctypes.c_void_p) for name in "q k v f b a_log dt_bias w u qg kg scores ends indices starts".split()]
        + [(name, ctypes.c_int64) for name in "q_row q_head k_row k_head v_row v_head f_row f_head b_row".split()]
        + [("heads", ctypes.c_int), ("lower_bound", ctypes.c_float)]
    )


def kda_chunk(
    q_THD: Tensor,
    k_THD: Tensor,
    v_THD: Tensor,
    f_THD: Tensor,
    b_TH: Tensor,
    A_log_H: Tensor,
    dt_bias_HD: Tensor,
    state_SHKV: Tensor,
    slot_R: Tensor,
    start_R1: Tensor,
    has_state_R: Tensor,
    *,
    lower_bound: float,
    extend_lens: tuple[int, ...],
) -> Tensor:
    """See the op's contract. Requests with rows come first in `slot_R`."""
    if q_THD.dtype != torch.bfloat16 or v_THD.shape[2] != 128 or lower_bound < -5.2:
        raise ValueError("cuda_prepared takes bfloat16 rows of heads of 128 values and gates of at least -5.2")
    cut, o_THD = begin_pass(v_THD, extend_lens)
    if not cut.rows:
        return o_THD
    prepared = prepare(q_THD, k_THD, v_THD, f_THD, b_TH, A_log_H, dt_bias_HD, cut, lower_bound)
    run_segments(prepared, cut, o_THD, state_SHKV, slot_R, has_state_R)
    return o_THD


def prepare(
    q_THD: Tensor, k_THD: Tensor, v_THD: Tensor, f_THD: Tensor, b_TH: Tensor, A_log_H: Tensor, dt_bias_HD: Tensor,
    cut: Plan, lower_bound: float,
) -> Prepared:  # fmt: skip
    """Every chunk of the pass."""
    heads, width = v_THD.shape[1:]
    rows = [_aligned(x) for x in (q_THD, k_THD, v_THD, f_THD)]
    w, u, qg, kg = (v_THD.new_empty((cut.rows, heads, width)) for _ in range(4))
    scores = v_THD.new_empty((cut.rows, heads, CHUNK))
    chunks = cut.chunk_indices.shape[0]
    ends = torch.empty((chunks, heads, width), dtype=torch.float32, device=v_THD.device)
    q, k, v, f = rows
    arguments = PrepareArguments(
        q=q.data_ptr(), k=k.data_ptr(), v=v.data_ptr(), f=f.data_ptr(), b=b_TH.data_ptr(), a_log=A_log_H.data_ptr(),
        dt_bias=dt_bias_HD.data_ptr(), w=w.data_ptr(), u=u.data_ptr(), qg=qg.data_ptr(), kg=kg.data_ptr(),
        scores=scores.data_ptr(), ends=ends.data_ptr(), indices=cut.chunk_indices.data_ptr(),
        starts=cut.cu_seqlens.data_ptr(), q_row=q.stride(0), q_head=q.stride(1), k_row=k.stride(0),
        k_head=k.stride(1), v_row=v.stride(0), v_head=v.stride(1), f_row=f.stride(0), f_head=f.stride(1),
        b_row=b_TH.stride(0), heads=heads, lower_bound=lower_bound,
    )  # fmt: skip
    _PREPARE.launch((heads, chunks, 1), 256, [arguments])
    return Prepared(w, u, qg, kg, scores, ends)


def _aligned(x_THD: Tensor) -> Tensor:
    """Rows that 16-byte copies can read."""
    fits = x_THD.stride(2) == 1 and not (x_THD.stride(0) % 8 or x_THD.stride(1) % 8 or x_THD.data_ptr() % 16)
    return x_THD if fits else x_THD.contiguous()
