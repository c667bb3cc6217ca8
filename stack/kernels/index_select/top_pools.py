"""What the GPU implementations of the selection share: quantised queries, row tiles under the workspace, the top-k
kernel.

T rows, H index heads, D index width, P columns of a score row, W entries of an index row.
"""

import ctypes
from collections.abc import Iterator
from ctypes import c_int64
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from stack.kernels.cuda_source import CudaKernel

if TYPE_CHECKING:
    from torch import Tensor

STAGED = 16384
"""Pools of a row that the top-k keeps in shared memory; longer rows are read from global memory again."""

_TOP = CudaKernel(Path(__file__).with_suffix(".cu"), "top_pools", STAGED * 4)
_SHORT = CudaKernel(Path(__file__).with_suffix(".cu"), "top_pools", STAGED * 2)
_HELD = {2048 * n: CudaKernel(Path(__file__).with_suffix(".cu"), f"top_pools_held_{n}") for n in (5, 9)}
"""Widest score row of each kernel that holds its row in registers."""
MOST_POOLS = 2048
"""That a row may choose: what the kernel has room to list."""
_QUERY = CudaKernel(Path(__file__).parents[1] / "index_rows.cu", "index_query")


class TopArguments(ctypes.Structure):
    """`TopArguments` of the source."""

    _fields_: ClassVar[Any] = (
        [(name, ctypes.c_void_p) for name in "scores request position slot page_table out".split()]
        + [(name, ctypes.c_int64) for name in ("score_row", "table_row", "out_row")]
        + [(name, ctypes.c_int) for name in "width kpool budget page_shift staged".split()]
    )


def index_width(kpool: int, budget: int) -> int:
    """Entries of an index row."""
    return -(-(budget * kpool + kpool - 1) // 64) * 64


def score_columns(max_context: int, kpool: int) -> int:
    """Columns of a score row: the widest context's pools, rounded up to 16 bytes."""
    return max(4, -(-max_context // kpool // 4) * 4)


def prepared_queries(q_THD: "Tensor", w_TH: "Tensor", *, fp8: bool) -> "tuple[Tensor, Tensor]":
    """Queries as the scores take them, and head weights that carry D^-0.5 and the queries' scales."""
    import torch

    rows, heads, head_dim = q_THD.shape
    if not fp8:
        return q_THD.contiguous(), (w_TH.float() * head_dim**-0.5).contiguous()
    if head_dim != 128 or q_THD.dtype != torch.bfloat16 or w_TH.dtype != torch.float32:
        raise ValueError("FP8 index scores take bfloat16 queries of 128 channels and float32 head weights")
    codes = torch.empty((rows, heads, head_dim), dtype=torch.float8_e4m3fn, device=q_THD.device)
    weights = torch.empty((rows, heads), dtype=torch.float32, device=q_THD.device)
    strides = [c_int64(q_THD.stride(0)), c_int64(q_THD.stride(1)), w_TH, c_int64(w_TH.stride(0))]
    count = rows * heads
    _QUERY.launch((-(-count // 4), 1, 1), 128, [q_THD, *strides, codes, weights, c_int64(count), heads])
    return codes, weights


def row_tiles(rows: int, columns: int, workspace_bytes: int) -> Iterator[slice]:
    """Slices of rows whose FP32 scores of `columns` fit the workspace; at least 64 rows each."""
    step = max(64, workspace_bytes // (4 * max(columns, 1)))
    return (slice(begin, min(rows, begin + step)) for begin in range(0, rows, step))


def top_pools(
    score_TP: "Tensor",
    page_table_SP: "Tensor",
    slot_R: "Tensor",
    request_T: "Tensor",
    position_T: "Tensor",
    out_TW: "Tensor",
    *,
    kpool: int,
    budget: int,
    page_size: int,
    held: bool = False,
) -> None:
    """Fill the index rows from scores; entries beyond a row's candidates are never read.

    `held` keeps a row's keys in registers where they fit, instead of in shared memory.
    """
    if budget > MOST_POOLS:
        raise ValueError(f"the top-k kernel lists at most {MOST_POOLS} pools a row, not {budget}")
    if score_TP.stride(0) % 4 or score_TP.stride(1) != 1:
        raise ValueError("the top-k kernel takes score rows aligned to 16 bytes")
    columns = score_TP.shape[1]
    kernel, staged = (_TOP, STAGED) if columns > STAGED // 2 else (_SHORT, STAGED // 2)
    if held:
        kernel = next((fits for limit, fits in _HELD.items() if columns <= limit), kernel)
    arguments = TopArguments(
        scores=score_TP.data_ptr(), request=request_T.data_ptr(), position=position_T.data_ptr(),
        slot=slot_R.data_ptr(), page_table=page_table_SP.data_ptr(), out=out_TW.data_ptr(),
        score_row=score_TP.stride(0), table_row=page_table_SP.stride(0), out_row=out_TW.stride(0),
        width=out_TW.shape[1], kpool=kpool, budget=budget, page_shift=page_size.bit_length() - 1, staged=staged,
    )  # fmt: skip
    kernel.launch((score_TP.shape[0], 1, 1), 512, [arguments])
