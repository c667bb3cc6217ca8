"""The page pool's views: disjoint, complete, strided for kernels, exact in their bytes."""

import pytest
import torch

from stack.cache import cache_layout
from stack.cache.pages import PagePool, strided_view
from stack.config import EngineConfig, with_settings

FULL = {"speculation.method": "dflash2", "speculation.draft_path": "draft", "cache.draft_kv": "full"}


def pool_of(geometry, settings, draft=None, num_pages=3, poison=True):
    layout = cache_layout(geometry, with_settings(EngineConfig(), settings), draft)
    return PagePool(layout, num_pages, "cpu", poison=poison)


def views_of(pool):
    layers = range(pool.layout.num_paged_layers)
    views = [pool.latents(n) for n in layers] + [pool.index_codes(n) for n in layers]
    views += [scale for n in layers if (scale := pool.index_scales(n)) is not None]
    if pool.layout.draft:
        views += [part for n in range(pool.layout.draft.num_layers) for part in vars_of(pool.draft_layer(n))]
    return views


def vars_of(draft_layer):
    return draft_layer.k, draft_layer.v


def as_bytes(view):
    return view.view(torch.uint8)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"cache.kv_dtype": "fp8_e4m3"},
        {"cache.index_dtype": "bfloat16"},
        {"cache.index_layout": "per_token"},
        {"cache.page_size": 4},
        FULL,
    ],
    ids=str,
)
def test_views_cover_every_byte_of_a_page_once(tiny, tiny_draft, settings):
    pool = pool_of(tiny, settings, tiny_draft if "speculation.method" in settings else None, poison=False)
    pool.buffer.zero_()
    for view in views_of(pool):
        as_bytes(view).add_(1)
    parts = pool.layout.page_parts
    for page in pool.buffer.view(4, -1):
        assert page.max() == 1
        padding = (
            parts["padding"]
            + parts["index"]
            + parts["empty_index"]
            - sum(pool.layout.num_paged_layers * pool.layout.pools_per_page * pool.layout.index_row_bytes for _ in "1")
        )
        assert int((page == 0).sum()) == padding


def test_strides_suit_kernels_that_load_sixteen_bytes(tiny, tiny_draft):
    for view in views_of(pool_of(tiny, FULL | {"cache.kv_dtype": "fp8_e4m3"}, tiny_draft)):
        item = view.dtype.itemsize
        outer = view.stride()[:-2] if view.dtype != torch.float32 else view.stride()[:1]
        assert all(stride * item % 16 == 0 for stride in outer)
        assert view.data_ptr() % 4 == 0 and view.stride(-1) == 1


def test_the_sink_is_zero_and_the_rest_is_poisoned(tiny):
    pool = pool_of(tiny, {})
    for view in views_of(pool):
        values = view.float()
        assert not values[0].any() and values[1:].isnan().all()


def test_a_row_lands_in_its_own_page_and_layer_alone(tiny):
    pool = pool_of(tiny, {})
    pool.latents(1)[2, 5] = 7.0
    assert pool.latents(1)[2, 5].eq(7).all()
    start, size = pool.layout.latent_offset(1) + 5 * 1024, 1024
    page = pool.buffer.view(4, -1)[2]
    assert page[start : start + size].view(torch.bfloat16).eq(7).all()
    assert page[:start].eq(255).all() and page[start + size :].eq(255).all()


def test_neighbouring_pages_are_one_span(tiny):
    pool = pool_of(tiny, {}, num_pages=9)
    size, base = pool.layout.page_bytes, pool.address
    assert pool.spans([2, 3, 4, 7, 6]) == [
        (base + 2 * size, 3 * size),
        (base + 7 * size, size),
        (base + 6 * size, size),
    ]
    assert [len(rows) for rows in pool.rows([2, 3, 4, 7, 6])] == [3 * size, size, size]


def test_fp8_rows_saturate_at_448(tiny):
    latent = pool_of(tiny, {"cache.kv_dtype": "fp8_e4m3"}).latents(0)
    latent[1, 0] = torch.tensor(448.0)
    latent[1, 1] = torch.tensor([500.0, -1e6, 464.0, -448.0] * 128).clamp(-448, 448)
    assert latent[1, 0].float().eq(448).all()
    assert latent[1, 1].float().abs().eq(448).all()


def test_offsets_beyond_two_gibibytes_are_exact(quarter):
    layout = cache_layout(quarter, with_settings(EngineConfig(), {"cache.page_size": 256}))
    num_pages = 2**33 // layout.page_bytes
    pool = PagePool.__new__(PagePool)
    pool.layout, pool.num_pages = layout, num_pages
    pool.buffer = torch.empty((num_pages + 1) * layout.page_bytes, dtype=torch.uint8, device="meta")
    view = pool.latents(10)
    last = view[num_pages, 255]
    assert last.storage_offset() * 2 == num_pages * layout.page_bytes + layout.latent_offset(10) + 255 * 1024
    assert last.storage_offset() > 2**31


def test_a_view_may_not_cut_an_item():
    with pytest.raises(AssertionError, match="whole items"):
        strided_view(torch.zeros(64, dtype=torch.uint8), torch.float32, 2, (1,), (4,))


def test_synthetic_rows_are_finite_and_repeatable(tiny, tiny_draft):
    pools = [pool_of(tiny, FULL | {"cache.kv_dtype": "fp8_e4m3"}, tiny_draft) for _ in "ab"]
    for pool in pools:
        pool.randomize([1, 3], torch.Generator().manual_seed(5))
        for view in views_of(pool):
            values = view.float()
            assert values[[1, 3]].isfinite().all() and values[[1, 3]].any() and values[2].isnan().all()
    assert torch.equal(pools[0].buffer, pools[1].buffer)
