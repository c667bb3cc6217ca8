"""Matrix products whose rows never see each other, on the CPU.

A library chooses its kernel by the number of rows, so that the same row can come out with other last bits in another
batch. Here rows are padded to a multiple of `TILE` and multiplied in blocks of a power of two times `TILE`; a block
size is used for a weight shape only after it was seen, once in this process, to give the bits of single tiles.

T rows, K inputs, N outputs, H heads. Everything is FP32 inside.
"""

from functools import cache

import torch
from torch import Tensor

TILE = 8
"""Rows of the smallest product. Below 4 rows the library switches to matrix-vector kernels, which round differently."""

_BLOCKS = (256, 128, 64, 32, 16)


def tiled_matmul(x_TK: Tensor, weight_NK: Tensor) -> Tensor:
    """`x @ weight.T` in FP32 [T, N]; a row's bits depend on that row and the weight alone."""
    num_rows = x_TK.shape[0]
    x_TK, weight_NK = pad_rows(x_TK.float(), TILE), weight_NK.float()
    sizes = _split(x_TK.shape[0], exact_blocks(*weight_NK.shape))
    if len(sizes) == 1:
        return torch.mm(x_TK, weight_NK.t())[:num_rows]
    y_TN = x_TK.new_empty(x_TK.shape[0], weight_NK.shape[0])
    begin = 0
    for size in sizes:
        torch.mm(x_TK[begin : begin + size], weight_NK.t(), out=y_TN[begin : begin + size])
        begin += size
    return y_TN[:num_rows]


def pad_rows(x: Tensor, multiple: int) -> Tensor:
    """`x` with zero rows behind it up to a multiple of `multiple` rows; `x` itself where none are missing."""
    missing = -x.shape[0] % multiple
    return torch.cat((x, x.new_zeros(missing, *x.shape[1:]))) if missing else x


@cache
def exact_blocks(num_outputs: int, num_inputs: int) -> tuple[int, ...]:
    """Block sizes, largest first, that give the bits of single tiles for a weight [num_outputs, num_inputs]."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(_BLOCKS[0], num_inputs, generator=generator)
    weight = torch.randn(num_outputs, num_inputs, generator=generator).t()
    want = torch.cat([torch.mm(tile, weight) for tile in x.split(TILE)])
    exact = (s for s in _BLOCKS if torch.equal(torch.cat([torch.mm(block, weight) for block in x.split(s)]), want))
    return (*exact, TILE)


def _split(num_rows: int, blocks: tuple[int, ...]) -> list[int]:
    sizes = []
    for block in blocks:
        count, num_rows = divmod(num_rows, block)
        sizes += [block] * count
    return sizes
