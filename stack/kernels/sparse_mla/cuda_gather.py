"""Sparse attention on Hopper's warpgroup instructions, for prefill and decode, over BF16 or raw FP8 latents.

Keys are the 64 rows of the matrix instruction, so 16 heads waste nothing, and FP8 products stay FP8: the warp-level
instruction that a 16-row tile would otherwise fall back to is emulated with FP16 on this architecture. FP8: q is
quantised per head row to E4M3. `cuda_gather.cu` beside this has the kernel. Serves a latent width of 512 and strided
page pools; page size a power of two.
"""

from ctypes import c_int64
from pathlib import Path
from typing import TYPE_CHECKING

from stack.kernels.cuda_source import CudaKernel
from stack.kernels.devices import hopper_only

if TYPE_CHECKING:
    from torch import Tensor

missing = hopper_only

_SOURCE = Path(__file__).with_suffix(".cu")
_SHARED = {
    "fp8": 2 * 32768 + 8192 + 2048 + 1024,
    "bf16": 3 * 65536 + 16384 + 2048 + 1024,
    "paired_bf16": 3 * 65536 + 16384 + 2 * (2048 + 1024) + 2 * 8 * 128 * 4,
}
_RESIDENT = {"fp8": 3, "bf16": 1, "paired_bf16": 1}  # blocks a multiprocessor holds
_KERNELS = {kind: CudaKernel(_SOURCE, f"sparse_mla_{kind}", _SHARED[kind]) for kind in _SHARED}

TILE = 64
"""Keys per iteration."""


def sparse_mla(
    q_THL: "Tensor",
    latent_NPL: "Tensor",
    index_TW: "Tensor",
    *,
    scale: float,
    num_splits: int | None = None,
    paired: bool = False,
) -> "Tensor":
    """See the op's contract. `num_splits` None fills the device; more than one adds a merge kernel. `paired` gives a
    tile of BF16 keys to two warpgroups."""
    import torch

    _check(q_THL, latent_NPL, index_TW)
    rows, heads, width = q_THL.shape
    kind = "fp8" if latent_NPL.element_size() == 1 else "paired_bf16" if paired else "bf16"
    resident = _RESIDENT[kind] * torch.cuda.get_device_properties(q_THL.device).multi_processor_count
    blocks = rows * ((heads + 15) // 16)
    splits = num_splits or _splits(blocks, resident, index_TW.shape[1])
    out = torch.empty((rows, heads, width), dtype=q_THL.dtype, device=q_THL.device)
    partial = lse = None
    if splits > 1:
        partial = torch.empty((splits, rows, heads, width), dtype=torch.float32, device=q_THL.device)
        lse = torch.empty((splits, rows, heads), dtype=torch.float32, device=q_THL.device)
    element = latent_NPL.element_size()
    _KERNELS[kind].launch(
        (min(blocks * splits, resident), 1, 1),
        256 if kind == "paired_bf16" else 128,
        [
            q_THL,
            c_int64(q_THL.stride(0)),
            c_int64(q_THL.stride(1)),
            latent_NPL,
            c_int64(latent_NPL.stride(0) * element),
            c_int64(latent_NPL.stride(1) * element),
            latent_NPL.shape[1].bit_length() - 1,
            index_TW,
            c_int64(index_TW.stride(0)),
            index_TW.shape[1],
            out,
            c_int64(out.stride(0)),
            c_int64(out.stride(1)),
            partial,
            lse,
            rows,
            heads,
            splits,
            scale * 1.4426950408889634,
        ],
    )
    if partial is not None and lse is not None:
        from stack.kernels.sparse_mla.triton_merge import merge_partials

        merge_partials(partial, lse, out)
    return out


def _splits(blocks: int, resident: int, width: int) -> int:
    """Parts of a row's keys, so that one wave of blocks fills the device; 1 as soon as the rows alone do."""
    if blocks * 2 > resident:
        return 1
    return max(1, min(resident // max(blocks, 1), -(-width // TILE) // 2))


def _check(q_THL: "Tensor", latent_NPL: "Tensor", index_TW: "Tensor") -> None:
    import torch

    if q_THL.dtype != torch.bfloat16 or q_THL.shape[2] != 512 or q_THL.stride(2) != 1:
        raise ValueError(f"cuda_gather takes bfloat16 q of width 512, not {q_THL.dtype} of width {q_THL.shape[2]}")
    if latent_NPL.dtype not in (torch.bfloat16, torch.float8_e4m3fn):
        raise ValueError(f"cuda_gather takes bfloat16 or float8_e4m3fn latents, not {latent_NPL.dtype}")
    if latent_NPL.shape[1] & (latent_NPL.shape[1] - 1):
        raise ValueError("cuda_gather needs a power-of-two page size")
    if index_TW.shape[1] % 4 or index_TW.stride(1) != 1 or index_TW.stride(0) % 4:
        raise ValueError("cuda_gather needs index rows of a multiple of 4 entries, 16-byte aligned")
