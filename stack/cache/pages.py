"""The page pool: one buffer of whole pages, seen by every layer through a strided view.

Knows the layout and nothing of who owns a page. Page 0 is a sink of zeros on top of the pages that can be handed out.
Offsets are 64-bit throughout: a pool is usually larger than 2^31 bytes.

N pages (the sink included) of P tokens, L latent values, Q pooled keys of D values, G draft heads of E values.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from stack.cache.allocator import merged_runs
from stack.cache.layout import CacheLayout
from stack.config import Dtype
from stack.core.memory import DraftLayer

TORCH_DTYPES: dict[Dtype, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "fp8_e4m3": torch.float8_e4m3fn,
}
POISON = 0xFF
"""A byte that makes every dtype in use (FP32, BF16, E4M3) a NaN."""


def strided_view(
    buffer: Tensor, dtype: torch.dtype, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]
) -> Tensor:
    """A view of a flat uint8 buffer; `offset` and `strides` are bytes and multiples of the item's size."""
    item = dtype.itemsize
    assert not offset % item and not any(stride % item for stride in strides), "a view must fall on whole items"
    flat = buffer.view(dtype)
    return flat.as_strided(shape, tuple(stride // item for stride in strides), offset // item)


class PagePool:
    """`num_pages` pages that can be handed out (numbers 1 to `num_pages`), and the sink."""

    def __init__(
        self, layout: CacheLayout, num_pages: int, device: str | torch.device, *, poison: bool = False
    ) -> None:
        """Allocate on `device`. `poison` fills all but the sink with NaN, so that a test sees a read of stale rows."""
        self.layout = layout
        self.num_pages = num_pages
        self.buffer = torch.empty((num_pages + 1) * layout.page_bytes, dtype=torch.uint8, device=device)
        if poison:
            self.buffer.fill_(POISON)
        self.bytes_NB = self.buffer.view(num_pages + 1, layout.page_bytes)
        self.bytes_NB[0].zero_()

    @property
    def device(self) -> torch.device:
        """Where the pages live."""
        return self.buffer.device

    @property
    def address(self) -> int:
        """Address of page 0; page p starts `page_bytes * p` later."""
        return self.buffer.data_ptr()

    @property
    def num_bytes(self) -> int:
        """Bytes of the whole pool, the sink included: what a transfer engine registers once."""
        return self.buffer.numel()

    def spans(self, pages: Iterable[int]) -> list[tuple[int, int]]:
        """(address, bytes) of the pages in the order given; neighbours that ascend share a span."""
        size = self.layout.page_bytes
        return [(self.address + first * size, count * size) for first, count in merged_runs(pages)]

    def latents(self, layer: int) -> Tensor:
        """A paged layer's latents in every page [N, P, L]."""
        at = self.layout
        shape = (self.num_pages + 1, at.page_size, at.latent_dim)
        item = TORCH_DTYPES[at.kv_dtype].itemsize
        return self._view(at.kv_dtype, at.latent_offset(layer), shape, (at.page_bytes, at.latent_row_bytes, item))

    def index_codes(self, layer: int) -> Tensor:
        """A paged layer's pooled index keys in every page [N, Q, D]: E4M3 codes, or plain values."""
        at = self.layout
        item = TORCH_DTYPES[at.index_dtype].itemsize
        shape = (self.num_pages + 1, at.pools_per_page, at.index_dim)
        return self._view(at.index_dtype, at.codes_offset(layer), shape, (at.page_bytes, at.index_dim * item, item))

    def index_scales(self, layer: int) -> Tensor | None:
        """A paged layer's FP32 scales of its pooled keys [N, Q]; None when they are plain values."""
        at = self.layout
        if at.index_dtype != "fp8_e4m3":
            return None
        return self._view(
            "float32", at.scales_offset(layer), (self.num_pages + 1, at.pools_per_page), (at.page_bytes, 4)
        )

    def draft_layer(self, layer: int) -> DraftLayer:
        """A draft layer's K and V rows [N, P, G, E] in every page, for `draft_kv: full`."""
        at = self.layout
        assert at.draft and at.draft.place == "full"
        item = TORCH_DTYPES[at.draft.dtype].itemsize
        shape = (self.num_pages + 1, at.page_size, at.draft.num_kv_heads, at.draft.head_dim)
        strides = (at.page_bytes, at.draft.row_bytes, at.draft.head_dim * item, item)
        k, v = (self._view(at.draft.dtype, at.draft_page_offset(layer, part), shape, strides) for part in (0, 1))
        return DraftLayer(k=k, v=v)

    def rows(self, pages: list[int]) -> list[Tensor]:
        """The bytes of the pages as views, one a run of neighbours, in the order given."""
        return [self.bytes_NB[first : first + count].view(-1) for first, count in merged_runs(pages)]

    def randomize(self, pages: list[int], generator: torch.Generator) -> None:
        """Fill pages with finite random rows (synthetic admission): unit size, scales a power of two."""
        index = torch.tensor(pages, device=self.device)
        for layer in range(self.layout.num_paged_layers):
            for view in (self.latents(layer), self.index_codes(layer)):
                _scatter_normal(view, index, generator)
            if (scale_NQ := self.index_scales(layer)) is not None:
                scale_NQ[index] = 2.0**-8
        if self.layout.draft and self.layout.draft.place == "full":
            for layer in range(self.layout.draft.num_layers):
                rows = self.draft_layer(layer)
                for view in (rows.k, rows.v):
                    _scatter_normal(view, index, generator)

    def _view(self, dtype: Dtype, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> Tensor:
        return strided_view(self.buffer, TORCH_DTYPES[dtype], offset, shape, strides)


def _scatter_normal(view: Tensor, index: Tensor, generator: torch.Generator) -> None:
    shape = (len(index), *view.shape[1:])
    values = torch.randn(shape, generator=generator, device=view.device, dtype=torch.float32).to(view.dtype)
    item = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[view.dtype.itemsize]
    view.view(item)[index] = values.view(item)
