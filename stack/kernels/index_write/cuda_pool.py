"""Pools closed, then rings refreshed: two launches of one warp a row. Serves 128 channels, BF16 rows and rings, pools
of at most 8.
"""

import ctypes
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from stack.kernels.cuda_source import CudaKernel
from stack.kernels.devices import hopper_only

if TYPE_CHECKING:
    from torch import Tensor

missing = hopper_only

_SOURCE = Path(__file__).parents[1] / "index_rows.cu"
_POOL, _RING = CudaKernel(_SOURCE, "index_pool"), CudaKernel(_SOURCE, "index_ring")
_ROWS = 4  # warps of a block

_POINTERS = "ik ig norm_weight norm_bias ape tail codes scales page_table slot request position start write"
_STRIDES = "ik_row ig_row tail_slot tail_entry codes_page codes_row scales_page table_row"
_COUNTS = "rows ring kpool pools_a_page parameters_bf16 ape_bf16"


class WriteArguments(ctypes.Structure):
    """`WriteArguments` of the source."""

    _fields_: ClassVar[Any] = (
        [(name, ctypes.c_void_p) for name in _POINTERS.split()]
        + [(name, ctypes.c_int64) for name in _STRIDES.split()]
        + [(name, ctypes.c_int) for name in _COUNTS.split()]
    )


def index_write(
    ik_TD: "Tensor",
    ig_TD: "Tensor",
    norm_weight_D: "Tensor",
    norm_bias_D: "Tensor",
    ape_KD: "Tensor",
    tail_SR2D: "Tensor",
    codes_NQD: "Tensor",
    scale_NQ: "Tensor | None",
    page_table_SP: "Tensor",
    slot_R: "Tensor",
    request_T: "Tensor",
    position_T: "Tensor",
    start_R1: "Tensor",
    write_T: "Tensor",
) -> None:
    """See the op's contract."""
    import torch

    if (
        ik_TD.dtype != torch.bfloat16
        or tail_SR2D.dtype != torch.bfloat16
        or ik_TD.shape[1] != 128
        or ape_KD.shape[0] > 8
    ):
        raise ValueError("cuda_pool takes bfloat16 rows and rings of 128 channels and pools of at most 8 tokens")
    if norm_weight_D.dtype != norm_bias_D.dtype:
        raise ValueError("cuda_pool takes a norm weight and bias of one dtype")
    arguments = WriteArguments(
        ik=ik_TD.data_ptr(), ig=ig_TD.data_ptr(), norm_weight=norm_weight_D.data_ptr(),
        norm_bias=norm_bias_D.data_ptr(),
        ape=ape_KD.data_ptr(), tail=tail_SR2D.data_ptr(), codes=codes_NQD.data_ptr(),
        scales=None if scale_NQ is None else scale_NQ.data_ptr(), page_table=page_table_SP.data_ptr(),
        slot=slot_R.data_ptr(),
        request=request_T.data_ptr(), position=position_T.data_ptr(), start=start_R1.data_ptr(),
        write=write_T.data_ptr(),
        ik_row=ik_TD.stride(0), ig_row=ig_TD.stride(0), tail_slot=tail_SR2D.stride(0), tail_entry=tail_SR2D.stride(1),
        codes_page=codes_NQD.stride(0), codes_row=codes_NQD.stride(1),
        scales_page=0 if scale_NQ is None else scale_NQ.stride(0),
        table_row=page_table_SP.stride(0), rows=ik_TD.shape[0], ring=tail_SR2D.shape[1], kpool=ape_KD.shape[0],
        pools_a_page=codes_NQD.shape[1], parameters_bf16=norm_weight_D.dtype == torch.bfloat16,
        ape_bf16=ape_KD.dtype == torch.bfloat16,
    )  # fmt: skip
    grid = (-(-ik_TD.shape[0] // _ROWS), 1, 1)
    _POOL.launch(grid, 32 * _ROWS, [arguments])
    _RING.launch(grid, 32 * _ROWS, [arguments])
