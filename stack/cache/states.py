"""The state pool: one span a slot with everything of a request that does not grow, and the buffers of a verify.

Knows the layout and nothing of who owns a slot. Slot 0 and ring entry 0 are sinks of zeros, on top of what can be
handed out. Copies and zeroing are ordered on the current stream like any other work on the device.

S slots (sink included), H heads, L KDA layers, K = V = D widths, C = 3 parts of a window of 3 inputs, R index tail
tokens, N ring entries (sink included) of W rows, X convolution channels.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from stack.cache.allocator import merged_runs
from stack.cache.layout import CacheLayout
from stack.cache.pages import POISON, TORCH_DTYPES, PagePool, strided_view
from stack.config import Dtype
from stack.core.memory import DraftLayer, KdaLayer, ModelMemory, PagedLayer, ReplayRing


class StatePool:
    """`num_slots` slots that can be handed out (1 to `num_slots`), `num_ring_entries` replay entries, and the sinks."""

    def __init__(
        self,
        layout: CacheLayout,
        num_slots: int,
        num_ring_entries: int,
        device: str | torch.device,
        *,
        num_snapshot_entries: int = 0,
        poison: bool = False,
    ) -> None:
        """Allocate on `device`. No ring without speculation; `num_snapshot_entries` > 0 for commit by snapshot.

        `poison` fills all but the sinks with NaN, so that a test sees a read of stale state.
        """
        self.layout = layout
        self.num_slots = num_slots
        self.buffer = torch.empty((num_slots + 1) * layout.slot_bytes, dtype=torch.uint8, device=device)
        if poison:
            self.buffer.fill_(POISON)
        self.bytes_SB = self.buffer.view(num_slots + 1, layout.slot_bytes)
        self.bytes_SB[0].zero_()
        has_ring = layout.verify_width > 1 and num_ring_entries > 0
        self.ring_all = _new_ring(layout, num_ring_entries + 1, device, poison) if has_ring else None
        self.snapshots_LNWHKV = _new_snapshots(layout, num_snapshot_entries, device, poison)

    @property
    def device(self) -> torch.device:
        """Where the slots live."""
        return self.buffer.device

    @property
    def address(self) -> int:
        """Address of slot 0; slot s starts `slot_bytes * s` later."""
        return self.buffer.data_ptr()

    @property
    def num_bytes(self) -> int:
        """Bytes of all slots, the sink included: what a transfer engine registers once. Rings never travel."""
        return self.buffer.numel()

    def span(self, slot: int) -> tuple[int, int]:
        """(address, bytes) of a whole slot."""
        return self.address + slot * self.layout.slot_bytes, self.layout.slot_bytes

    def spans(self, slots: Iterable[int]) -> list[tuple[int, int]]:
        """(address, bytes) of the slots in the order given; neighbours that ascend share a span."""
        size = self.layout.slot_bytes
        return [(self.address + first * size, count * size) for first, count in merged_runs(slots)]

    def head_spans(self, slot: int, first: int, count: int) -> list[tuple[int, int]]:
        """(address, bytes) of the states and of the windows of heads `first` to `first + count - 1`."""
        at, start = self.layout, self.span(slot)[0]
        return [
            (start + first * at.state_head_bytes, count * at.state_head_bytes),
            (start + at.conv_offset + first * at.conv_head_bytes, count * at.conv_head_bytes),
        ]

    def zero(self, slots: Iterable[int]) -> None:
        """Make slots fresh: zero state, windows, tails and draft ring."""
        for first, count in merged_runs(slots):
            self.bytes_SB[first : first + count].zero_()

    def copy(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Copy whole slots, `(source, destination)` each: snapshot and restore. Bytes are carried verbatim."""
        for source, destination in pairs:
            assert source and destination, "slot 0 is the sink and is never copied"
            self.bytes_SB[destination].copy_(self.bytes_SB[source])

    def row(self, slot: int) -> Tensor:
        """The bytes of a slot, as a view."""
        return self.bytes_SB[slot]

    @property
    def states(self) -> Tensor:
        """Recurrent states of every slot [S, H, L, K, V]."""
        at = self.layout
        item = TORCH_DTYPES[at.state_dtype].itemsize
        shape = (self.num_slots + 1, at.num_heads, at.num_kda_layers, at.head_dim, at.head_dim)
        strides = (at.slot_bytes, at.state_head_bytes, at.state_layer_bytes, at.head_dim * item, item)
        return self._view(at.state_dtype, 0, shape, strides)

    @property
    def windows(self) -> Tensor:
        """Convolution windows of every slot [S, H, L, C, D, 3], oldest input first."""
        at = self.layout
        item = TORCH_DTYPES[at.conv_dtype].itemsize
        row = at.conv_window * item
        shape = (self.num_slots + 1, at.num_heads, at.num_kda_layers, 3, at.head_dim, at.conv_window)
        strides = (at.slot_bytes, at.conv_head_bytes, at.conv_layer_bytes, at.head_dim * row, row, item)
        return self._view(at.conv_dtype, at.conv_offset, shape, strides)

    def tails(self, layer: int) -> Tensor:
        """A paged layer's ring of un-pooled keys and gates in every slot [S, R, 2, D]."""
        at = self.layout
        item = TORCH_DTYPES[at.compute_dtype].itemsize
        row = at.index_dim * item
        shape = (self.num_slots + 1, at.tail_ring, 2, at.index_dim)
        offset = at.tail_offset + layer * at.tail_layer_bytes
        return self._view(at.compute_dtype, offset, shape, (at.slot_bytes, 2 * row, row, item))

    def draft_layer(self, layer: int) -> DraftLayer:
        """A draft layer's ring of K and V [S, window, G, E] in every slot, for `draft_kv: ring`."""
        at = self.layout
        assert at.draft and at.draft.place == "ring"
        item = TORCH_DTYPES[at.draft.dtype].itemsize
        shape = (self.num_slots + 1, at.draft.window, at.draft.num_kv_heads, at.draft.head_dim)
        strides = (at.slot_bytes, at.draft.row_bytes, at.draft.head_dim * item, item)
        k, v = (self._view(at.draft.dtype, at.draft_slot_offset(layer, part), shape, strides) for part in (0, 1))
        return DraftLayer(k=k, v=v)

    def kda_layer(self, layer: int) -> KdaLayer:
        """The part of every slot and of the verify buffers that KDA layer `layer` (counted among KDA layers) uses."""
        snapshots = self.snapshots_LNWHKV
        return KdaLayer(
            state_SHKV=self.states[:, :, layer],
            conv_SHCDW=self.windows[:, :, layer],
            ring=_ring_of_layer(self.ring_all, layer) if self.ring_all else None,
            snapshots_NWHKV=None if snapshots is None else snapshots[layer],
        )

    def _view(self, dtype: Dtype, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> Tensor:
        return strided_view(self.buffer, TORCH_DTYPES[dtype], offset, shape, strides)


def model_memory(pages: PagePool, states: StatePool, *, index_workspace_bytes: int) -> ModelMemory:
    """The views that a forward pass may touch: all layers of both pools."""
    layout = pages.layout
    assert layout == states.layout, "one memory has one layout"
    home = pages if layout.draft and layout.draft.place == "full" else states
    num_draft = layout.draft.num_layers if layout.draft else 0
    return ModelMemory(
        paged=tuple(_paged_layer(pages, states, layer) for layer in range(layout.num_paged_layers)),
        kda=tuple(states.kda_layer(layer) for layer in range(layout.num_kda_layers)),
        draft=tuple(home.draft_layer(layer) for layer in range(num_draft)),
        state_SHLKV=states.states,
        conv_SHLCDW=states.windows,
        ring_all=states.ring_all,
        snapshots_LNWHKV=states.snapshots_LNWHKV,
        index_workspace_bytes=index_workspace_bytes,
    )


def _paged_layer(pages: PagePool, states: StatePool, layer: int) -> PagedLayer:
    return PagedLayer(
        latent_NPL=pages.latents(layer),
        codes_NQD=pages.index_codes(layer),
        scale_NQ=pages.index_scales(layer),
        tail_SR2D=states.tails(layer),
    )


def _new_ring(layout: CacheLayout, num_entries: int, device: str | torch.device, poison: bool) -> ReplayRing:
    compute = TORCH_DTYPES[layout.compute_dtype]
    heads, width = layout.num_heads, layout.head_dim
    lead = (layout.num_kda_layers, num_entries, layout.verify_width)

    def rows(dtype: torch.dtype, *shape: int) -> Tensor:
        return _with_sink(torch.empty((*lead, *shape), dtype=dtype, device=device), poison)

    return ReplayRing(
        k_NWHD=rows(compute, heads, width),
        v_NWHD=rows(compute, heads, width),
        g_NWHD=rows(torch.float32, heads, width),
        beta_NWH=rows(torch.float32, heads),
        x_NWX=rows(compute, 3 * heads * width),
    )


def _new_snapshots(layout: CacheLayout, num_entries: int, device: str | torch.device, poison: bool) -> Tensor | None:
    if not num_entries:
        return None
    square = (layout.head_dim, layout.head_dim)
    shape = (layout.num_kda_layers, num_entries + 1, layout.verify_width, layout.num_heads, *square)
    return _with_sink(torch.empty(shape, dtype=TORCH_DTYPES[layout.state_dtype], device=device), poison)


def _with_sink(rows_LN: Tensor, poison: bool) -> Tensor:
    if poison:
        rows_LN.fill_(float("nan"))
    rows_LN[:, 0].zero_()
    return rows_LN


def _ring_of_layer(ring: ReplayRing, layer: int) -> ReplayRing:
    return ReplayRing(
        k_NWHD=ring.k_NWHD[layer],
        v_NWHD=ring.v_NWHD[layer],
        g_NWHD=ring.g_NWHD[layer],
        beta_NWH=ring.beta_NWH[layer],
        x_NWX=ring.x_NWX[layer],
    )
