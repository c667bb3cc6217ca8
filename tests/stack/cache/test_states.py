"""The state pool: spans, fresh slots, snapshots, and the memory a forward is given."""

import pytest
import torch

from stack.cache import cache_layout
from stack.cache.pages import PagePool
from stack.cache.states import StatePool, model_memory
from stack.config import EngineConfig, with_settings

RING = {"speculation.method": "dflash2", "speculation.draft_path": "draft"}


def pool_of(geometry, settings, draft=None, num_slots=3, **options):
    layout = cache_layout(geometry, with_settings(EngineConfig(), settings), draft)
    return StatePool(layout, num_slots, options.pop("num_ring_entries", 2), "cpu", poison=True, **options)


def views_of(pool):
    views = [pool.states, pool.windows]
    views += [pool.tails(layer) for layer in range(pool.layout.num_paged_layers)]
    if pool.layout.draft:
        for layer in range(pool.layout.draft.num_layers):
            ring = pool.draft_layer(layer)
            views += [ring.k, ring.v]
    return views


@pytest.mark.parametrize("settings", [{}, {"cache.state_dtype": "bfloat16"}, RING], ids=str)
def test_views_cover_every_byte_of_a_slot_once(tiny, tiny_draft, settings):
    pool = pool_of(tiny, settings, tiny_draft if settings is RING else None)
    pool.buffer.zero_()
    for view in views_of(pool):
        view.view(torch.uint8).add_(1)
    for slot in pool.buffer.view(4, -1):
        assert slot.max() == 1
        assert int((slot == 0).sum()) == pool.layout.slot_parts["padding"]


def test_the_sinks_are_zero_and_the_rest_is_poisoned(tiny, tiny_draft):
    pool = pool_of(tiny, RING, tiny_draft)
    for view in views_of(pool):
        assert not view[0].any() and view[1:].isnan().all()
    ring = pool.ring_all
    for rows in (ring.k_NWHD, ring.v_NWHD, ring.g_NWHD, ring.beta_NWH, ring.x_NWX):
        assert not rows[:, 0].any() and rows[:, 1:].isnan().all()


def test_any_share_of_heads_is_two_spans(tiny):
    pool = pool_of(tiny, {})
    (state, state_bytes), (conv, conv_bytes) = pool.head_spans(2, first=1, count=2)
    heads = pool.states[2, 1:3]
    assert (heads.data_ptr(), heads.numel() * 4) == (state, state_bytes)
    windows = pool.windows[2, 1:3]
    assert (windows.data_ptr(), windows.numel() * 2) == (conv, conv_bytes)


def test_a_fresh_slot_is_zero_and_its_neighbours_are_not_touched(tiny):
    pool = pool_of(tiny, {})
    pool.zero([2])
    assert not pool.row(2).any()
    assert pool.row(1).eq(255).all() and pool.row(3).eq(255).all()


def test_a_snapshot_carries_every_byte(tiny, tiny_draft):
    pool = pool_of(tiny, RING, tiny_draft)
    pool.bytes_SB[1:3].random_(0, 256)
    want = pool.row(1).clone()
    pool.copy([(1, 3)])
    pool.zero([1])
    pool.copy([(3, 1)])
    assert torch.equal(pool.row(1), want) and not torch.equal(pool.row(2), want)


def test_the_sink_is_never_copied(tiny):
    with pytest.raises(AssertionError, match="sink"):
        pool_of(tiny, {}).copy([(0, 1)])


def test_rings_exist_only_with_speculation(tiny, tiny_draft):
    assert pool_of(tiny, {}).ring_all is None
    assert pool_of(tiny, RING, tiny_draft, num_ring_entries=0).ring_all is None
    pool = pool_of(tiny, RING, tiny_draft, num_snapshot_entries=2)
    ring, at = pool.ring_all, pool.layout
    fields = (ring.k_NWHD, ring.v_NWHD, ring.g_NWHD, ring.beta_NWH, ring.x_NWX)
    assert sum(rows.numel() * rows.element_size() for rows in fields) == 3 * at.ring_entry_bytes
    snapshots = pool.snapshots_LNWHKV
    assert snapshots.numel() * snapshots.element_size() == 3 * at.snapshot_entry_bytes


def test_a_forward_sees_one_entry_per_layer_over_the_same_bytes(tiny, tiny_draft):
    states = pool_of(tiny, RING, tiny_draft, num_snapshot_entries=2)
    pages = PagePool(states.layout, 3, "cpu")
    memory = model_memory(pages, states, index_workspace_bytes=1 << 20)
    assert (len(memory.paged), len(memory.kda), len(memory.draft)) == (2, 7, 2)
    memory.kda[4].state_SHKV[1, 2].fill_(3.0)
    assert memory.state_SHLKV[1, 2, 4].eq(3).all()
    memory.kda[4].conv_SHCDW[1, 2].fill_(5.0)
    assert memory.conv_SHLCDW[1, 2, 4].eq(5).all()
    memory.kda[6].ring.g_NWHD[1].fill_(2.0)
    assert memory.ring_all.g_NWHD[6, 1].eq(2).all()
    memory.kda[6].snapshots_NWHKV[2].fill_(4.0)
    assert memory.snapshots_LNWHKV[6, 2].eq(4).all()
    assert memory.draft[1].k.shape == (4, tiny_draft.window, tiny_draft.num_kv_heads, tiny_draft.head_dim)
    assert memory.index_workspace_bytes == 1 << 20


def test_full_draft_rows_live_in_pages(tiny, tiny_draft):
    states = pool_of(tiny, RING | {"cache.draft_kv": "full"}, tiny_draft)
    memory = model_memory(PagePool(states.layout, 5, "cpu"), states, index_workspace_bytes=0)
    assert memory.draft[0].v.shape == (6, 64, tiny_draft.num_kv_heads, tiny_draft.head_dim)
