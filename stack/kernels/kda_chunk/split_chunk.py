"""KDA prefill in segments side by side, chunks prepared by fla's Triton kernels: decays, triangular solves, W and U.

`segment_scan` has the serial part. G is the running sum of log2 decays inside a chunk.
"""

from ctypes import c_int64
from pathlib import Path

import torch
from torch import Tensor

from stack.kernels.cuda_source import CudaKernel
from stack.kernels.devices import hopper_only, package_missing
from stack.kernels.kda_chunk.segment_scan import Prepared, run_segments
from stack.kernels.kda_chunk.segments import CHUNK, Plan, begin_pass

_GATES = CudaKernel(Path(__file__).with_name("gates.cu"), "kda_gates")


def missing(device: str) -> str | None:
    """Needs Hopper and fla-core."""
    return hopper_only(device) or package_missing("fla.ops.kda")


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
    """See the op's contract. BF16 rows of heads of 128 values; requests with rows come first in `slot_R`."""
    if q_THD.dtype != torch.bfloat16 or v_THD.shape[2] != 128:
        raise ValueError("split_chunk takes bfloat16 rows of heads of 128 values")
    cut, o_THD = begin_pass(v_THD, extend_lens)
    if not cut.rows:
        return o_THD
    real = slice(0, cut.rows)
    g, beta = _gate_rows(f_THD, b_TH, A_log_H, dt_bias_HD, cut, lower_bound)
    prepared = _prepare(q_THD[real], k_THD[real], v_THD[real], g, beta, cut)
    run_segments(prepared, cut, o_THD, state_SHKV, slot_R, has_state_R)
    return o_THD


def _gate_rows(
    f_THD: Tensor, b_TH: Tensor, A_log_H: Tensor, dt_bias_HD: Tensor, cut: Plan, lower_bound: float
) -> tuple[Tensor, Tensor]:
    """G [T, H, K] and beta [T, H] in FP32."""
    heads, width = f_THD.shape[1:]
    g = torch.empty((cut.rows, heads, width), dtype=torch.float32, device=f_THD.device)
    beta = torch.empty((cut.rows, heads), dtype=torch.float32, device=f_THD.device)
    rows = [f_THD, c_int64(f_THD.stride(0)), c_int64(f_THD.stride(1)), b_TH, c_int64(b_TH.stride(0))]
    places = [A_log_H, dt_bias_HD, g, beta, cut.chunk_indices, cut.cu_seqlens, heads, lower_bound]
    _GATES.launch((cut.chunk_indices.shape[0], heads, 1), 64, rows + places)
    return g, beta


def _prepare(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, cut: Plan) -> Prepared:
    """fla's preparation, BF16."""
    from stack.kernels.kda_chunk.fla_configs import chunk_kda_fwd_intra

    w, u, qg, kg, attention, _ = chunk_kda_fwd_intra()(
        q=q[None], k=k[None], v=v[None], gk=g[None], beta=beta[None], scale=1.0, cu_seqlens=cut.cu_seqlens,
        chunk_size=CHUNK, chunk_indices=cut.chunk_indices, safe_gate=True, disable_recompute=True,
    )  # fmt: skip
    return Prepared(w[0], u[0], qg[0], kg[0], attention[0], g.index_select(0, cut.chunk_ends))
