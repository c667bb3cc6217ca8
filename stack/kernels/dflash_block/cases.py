"""Contexts that are empty, begun, whole and turned over, in rings and in pages; walks that are greedy and drawn.

What no row of a block sees is NaN in the pools of K and V.
"""

import torch
from torch import Tensor

from stack.kernels.cases import Call, Case, Draw
from stack.kernels.rms_norm.torch_rows import rms_norm

_HEADS, _KV_HEADS, _DIM, _WIDTH = 4, 2, 16, 8


def _attention(name: str, lengths: list[int], *, window: int, page: int = 0, width: int = _WIDTH) -> Case:
    """Blocks behind `lengths` committed tokens; the context is in pages of `page` rows, or in rings for 0."""

    def build(draw: Draw) -> Call:
        count, each = len(lengths), -(-max(lengths) // page) if page else 1
        pools = [_pool(draw, count * each + 1, page or window) for _ in range(2)]
        order = torch.tensor([i + 1 for i in draw.order(count * each)]).view(count, each)
        length_B = torch.tensor(lengths)
        back_BC = torch.arange(window).expand(count, window)
        position = length_B[:, None] - window + back_BC
        if page:
            at = position.clamp(min=0)
            first, second = order.gather(1, at // page), at % page
        else:
            position = length_B[:, None] - 1 - (length_B[:, None] - 1 - back_BC) % window
            first, second = order.expand(count, window), back_BC
        is_seen = (position >= 0) & (position > length_B[:, None] - window)
        for pool in pools:
            pool[first[is_seen], second[is_seen]] = draw.normal(int(is_seen.sum()), _KV_HEADS, _DIM)
        position = torch.where(position >= 0, position, -1)
        rows = draw.normal(count, width, _HEADS + 2 * _KV_HEADS, _DIM).split((_HEADS, _KV_HEADS, _KV_HEADS), dim=2)
        indices = [x.to(draw.device) for x in (first, second, position, length_B[:, None] + torch.arange(width))]
        return Call((*rows, *pools, *indices), {"window": window, "scale": _DIM**-0.5})

    return Case(name, build, function="block_attention")


def _pool(draw: Draw, count: int, rows: int) -> Tensor:
    """Spans of rows that lie apart; all but span 0 are poisoned."""
    size = rows * _KV_HEADS * _DIM
    return draw.poison(count, size + 64)[:, :size].unflatten(1, (rows, _KV_HEADS, _DIM))


def _rotation(queries: int, heads: int) -> Case:
    def build(draw: Draw) -> Call:
        x = draw.normal(5, heads + 1, _DIM)[:, :heads]
        position = draw.ints([0, 1, 7, 20, 63])
        options = {"num_queries": queries, "eps": 1e-5, "theta": 10000.0, "norm": rms_norm}
        return Call((x, draw.normal(2, _DIM, mean=1.0, std=0.2), position), options)

    return Case(f"{queries}_of_{heads}_heads", build, function="norm_rope")


def _convolution(batch: int, width: int, groups: int) -> Case:
    def build(draw: Draw) -> Call:
        dynamic = draw.normal(batch, width, 2, 2, groups)[:, :, 1]
        dynamic[:, 0, 1] = float("nan")
        return Call((draw.normal(batch, width, groups * 16), draw.normal(2, groups * 16), dynamic))

    return Case(f"{batch}x{width}x{groups}", build, function="dynamic_conv")


def _walk(name: str, temperature: list[float]) -> Case:
    def build(draw: Draw) -> Call:
        count, slots, top, rank, vocab = len(temperature), _WIDTH - 1, 5, 6, 50
        ids = torch.tensor([draw.order(vocab)[:top] for _ in range(count * slots)]).view(count, slots, top)
        codebooks = (draw.normal(vocab, rank), draw.normal(vocab, rank))
        anchor = draw.ints(list(range(3, 3 + 2 * count)), torch.int64)[::2]
        heat = torch.tensor(temperature).to(draw.device)
        unary = draw.normal(count, slots, top, dtype=torch.float32)
        z = draw.normal(count, slots, rank)
        return Call((unary, ids.to(draw.device), z, *codebooks, anchor, heat, draw.uniform(count, slots)))

    return Case(name, build, function="selector_walk")


CASES = (
    _attention("rings", [0, 3, 24, 25, 100], window=24),
    _attention("pages", [5, 70, 41], window=40, page=16),
    _attention("many_tiles", [290, 17], window=280),
    _attention("one_row", [9], window=8, page=4, width=1),
    _rotation(4, 6),
    _rotation(0, 2),
    _convolution(3, 8, 2),
    _convolution(1, 1, 3),
    _walk("greedy", [0.0, 0.0, 0.0]),
    _walk("mixed", [0.7, 0.0, 1.3]),
)
