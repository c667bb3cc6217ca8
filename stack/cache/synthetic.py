"""Synthetic admission: made-up content of a request's pages and slot, at the price of a few copies.

Values are drawn once. A page is then a copy of one of a few drawn pages; each part of a slot is a copy from a random
place of a stretch twice its size, so that no two requests have one state, which would route them to the same experts.
Drawing for each request took the device 3.4 ms an admission beside a decode cycle of 53 ms, where a real hand-off
computes nothing. What is held here is on top of the pools' byte budget.
"""

import random

import torch
from torch import Tensor

from stack.cache.allocator import merged_runs
from stack.cache.layout import CacheLayout
from stack.cache.pages import TORCH_DTYPES, PagePool
from stack.cache.states import StatePool

DRAWN_PAGES = 16
PLACE_BYTES = 256
"""Places in a stretch are multiples of this, so that copies are of whole cache lines."""


class SyntheticContent:
    """Finite random content for pages and slots of one layout, on the pools' device; copies are in stream order."""

    def __init__(self, pages: PagePool, states: StatePool, seed: int) -> None:
        """Draw it: `DRAWN_PAGES` pages and two slots."""
        self._pages, self._states = pages, states
        self._choose = random.Random(seed)
        generator = torch.Generator(pages.device).manual_seed(seed)
        self._drawn = PagePool(pages.layout, DRAWN_PAGES, pages.device)
        self._drawn.randomize(list(range(1, DRAWN_PAGES + 1)), generator)
        self._parts = [
            (offset, _stretch(num_bytes, dtype, size, generator))
            for offset, num_bytes, dtype, size in _slot_parts(states.layout)
            if num_bytes
        ]

    def fill(self, pages: list[int], slot: int) -> None:
        """Make up `pages` and `slot`: rows of unit size, scales a power of two, states a tenth of unit size."""
        for first, count in merged_runs(pages):
            for at in range(first, first + count, DRAWN_PAGES):
                size = min(DRAWN_PAGES, first + count - at)
                start = 1 + self._choose.randrange(DRAWN_PAGES - size + 1)
                self._pages.bytes_NB[at : at + size].copy_(self._drawn.bytes_NB[start : start + size])
        row_B = self._states.row(slot)
        for offset, stretch_B in self._parts:
            size = len(stretch_B) // 2
            place = self._choose.randrange(size // PLACE_BYTES + 1) * PLACE_BYTES
            row_B[offset : offset + size].copy_(stretch_B[place : place + size])


def _slot_parts(layout: CacheLayout) -> list[tuple[int, int, torch.dtype, float]]:
    """(offset, bytes, dtype, standard deviation) of what a slot holds."""
    size = layout.slot_parts
    draft = layout.draft.dtype if layout.draft else layout.compute_dtype
    return [
        (0, size["state"], TORCH_DTYPES[layout.state_dtype], 0.1),
        (layout.conv_offset, size["conv"], TORCH_DTYPES[layout.conv_dtype], 1.0),
        (layout.tail_offset, size["tails"], TORCH_DTYPES[layout.compute_dtype], 1.0),
        (layout.draft_ring_offset, size["draft"], TORCH_DTYPES[draft], 1.0),
    ]


def _stretch(num_bytes: int, dtype: torch.dtype, size: float, generator: torch.Generator) -> Tensor:
    """Bytes of twice as many random values as `num_bytes` holds."""
    values = torch.empty(2 * num_bytes // dtype.itemsize, dtype=dtype, device=generator.device)
    return values.normal_(0.0, size, generator=generator).view(torch.uint8)
