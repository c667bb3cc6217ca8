"""A call of an op, and what the builders of inputs draw tensors with."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from stack.kernels.quantized import Fp8Weight, QuantizedRows, empty_scales

BF16, FP8, F32, I32 = torch.bfloat16, torch.float8_e4m3fn, torch.float32, torch.int32


@dataclass(slots=True)
class Call:
    """One call of an op: its arguments, those of them that it writes, and the op's function where it has several."""

    args: list[Any]
    kwargs: dict[str, Any] = field(default_factory=dict)
    outputs: Callable[[list[Any]], list[Tensor]] = lambda args: []
    function: str = ""
    written: tuple[str, ...] = ()
    """Keyword arguments that the op writes, too."""
    parameters: tuple[int, ...] = ()
    """Arguments that a model's weights are, of which an implementation may keep a form of its own."""


def strided(rows: int, width: int, device: str, extra: int = 64) -> Tensor:
    """BF16 rows cut out of wider ones."""
    return torch.randn(rows, width + extra, device=device).to(BF16)[:, :width]


def quantized(rows: int, width: int, device: str) -> QuantizedRows:
    """Random codes with power-of-two scales that differ from group to group."""
    scales = empty_scales(rows, width // 128, device)
    scales.copy_(torch.exp2(torch.randint(-6, 3, (rows, width // 128), device=device).float()))
    return QuantizedRows(torch.randn(rows, width, device=device).to(FP8), scales)


def fp8_weight(*shape: int, device: str) -> Fp8Weight:
    """Random codes [.., N, K] with power-of-two scales that differ from block to block."""
    codes = torch.empty(shape, device=device, dtype=FP8)
    for part in codes.view(-1, *shape[-2:]):
        part.copy_(torch.randn(shape[-2:], device=device))
    blocks = (*shape[:-2], shape[-2] // 128, shape[-1] // 128)
    return Fp8Weight(codes, torch.exp2(torch.randint(-9, -4, blocks, device=device).float()))


def poisoned_rows(rows: int, *tensors: Tensor) -> None:
    """NaN in the last rows: nothing may come of what padding holds."""
    for tensor in tensors:
        tensor[tensor.shape[0] - rows :] = float("nan")


def pool_rows(pages: int, page: int, width: int, dtype: torch.dtype, device: str) -> Tensor:
    """Pages of rows inside wider pages, page 0 all zeros."""
    pool = torch.randn(pages, page * width + 512, device=device).to(dtype)
    pool[0] = torch.zeros_like(pool[0])
    return pool[:, 256 : 256 + page * width].unflatten(1, (page, width))


@dataclass(slots=True)
class Packing:
    """Rows of requests, packed and padded: the per-row and per-request tables."""

    slot: Tensor
    request: Tensor
    position: Tensor
    start: Tensor
    write: Tensor
    table: Tensor
    lens: tuple[int, ...]


def packing(lens: list[int], prefix: list[int], padding: int, page: int, slots: int, device: str) -> Packing:
    """Requests of `lens` new tokens behind `prefix` cached ones; slots count down from the last; padded rows carry
    slot 0."""
    requests = len(lens) + (1 if padding else 0)
    longest = max(p + n for p, n in zip(prefix, lens, strict=True))
    pages = -(-longest // page)
    table = torch.zeros(slots, pages, dtype=I32)
    order = torch.randperm(len(lens) * pages) + 1
    slot = [slots - 1 - i for i in range(len(lens))] + [0] * (requests - len(lens))
    request, position, write, start, used = [], [], [], [0], 0
    for i, (length, done) in enumerate(zip(lens, prefix, strict=True)):
        mine = order[used : used + pages].int()
        used += pages
        table[slot[i]] = mine
        for t in range(done, done + length):
            request.append(i)
            position.append(t)
            write.append(int(mine[t // page]) * page + t % page)
        start.append(len(request))
    start += [start[-1]] * (requests - len(lens))
    request += [requests - 1] * padding
    position += [0] * padding
    write += [0] * padding
    to = {"device": device}
    return Packing(
        torch.tensor(slot, dtype=I32, **to), torch.tensor(request, dtype=I32, **to), torch.tensor(position, dtype=I32,
        **to),
        torch.tensor(start, dtype=I32, **to), torch.tensor(write, dtype=torch.int64, **to), table.to(device),
        tuple(lens),
    )  # fmt: skip
