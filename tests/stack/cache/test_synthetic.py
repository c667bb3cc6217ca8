"""Made-up memory is finite, differs from request to request, and touches nothing else."""

import pytest
import torch

from stack.cache import cache_layout
from stack.cache.pages import PagePool
from stack.cache.states import StatePool
from stack.cache.synthetic import DRAWN_PAGES, SyntheticContent
from stack.config import EngineConfig, with_settings

DRAFT = {"speculation.method": "dflash2", "speculation.draft_path": "draft"}
FULL = DRAFT | {"cache.draft_kv": "full", "cache.kv_dtype": "fp8_e4m3", "cache.state_dtype": "bfloat16"}
NUM_PAGES, NUM_SLOTS = DRAWN_PAGES + 8, 4


def pools_of(geometry, settings, draft):
    layout = cache_layout(geometry, with_settings(EngineConfig(), settings), draft)
    return PagePool(layout, NUM_PAGES, "cpu", poison=True), StatePool(layout, NUM_SLOTS, 2, "cpu", poison=True)


def page_views(pages, layout):
    for layer in range(layout.num_paged_layers):
        yield pages.latents(layer)
        yield pages.index_codes(layer)
        if (scales := pages.index_scales(layer)) is not None:
            yield scales
    if layout.draft and layout.draft.place == "full":
        for layer in range(layout.draft.num_layers):
            yield from (pages.draft_layer(layer).k, pages.draft_layer(layer).v)


def slot_views(states, layout):
    yield from (states.states, states.windows)
    yield from (states.tails(layer) for layer in range(layout.num_paged_layers))
    if layout.draft and layout.draft.place == "ring":
        for layer in range(layout.draft.num_layers):
            yield from (states.draft_layer(layer).k, states.draft_layer(layer).v)


@pytest.mark.parametrize("settings", [{}, DRAFT, FULL], ids=["plain", "ring", "full"])
def test_a_fill_leaves_no_value_unset_and_nothing_else_changed(tiny, tiny_draft, settings):
    pages, states = pools_of(tiny, settings, tiny_draft if "speculation.method" in settings else None)
    content = SyntheticContent(pages, states, seed=3)
    filled = [1, *range(3, 3 + DRAWN_PAGES + 2)]
    rest = [page for page in range(1, NUM_PAGES + 1) if page not in filled]
    content.fill(filled, slot=2)
    for view in page_views(pages, pages.layout):
        values = view.float()
        assert values[filled].isfinite().all()
        assert all(values[page].any() for page in filled)
        assert values[rest].isnan().all()
        assert not values[0].any()
    for view in slot_views(states, states.layout):
        assert view[2].float().isfinite().all()
        assert view[2].float().std() > 0.05
        assert view[1].float().isnan().all()
        assert view[3].float().isnan().all()


def test_no_two_requests_get_one_state_and_a_seed_gives_the_same_again(tiny, tiny_draft):
    filled = []
    for _ in "ab":
        pages, states = pools_of(tiny, DRAFT, tiny_draft)
        content = SyntheticContent(pages, states, seed=3)
        for slot in range(1, NUM_SLOTS + 1):
            content.fill([slot], slot)
        filled.append(states.buffer.clone())
        rows = states.states[1:].flatten(1)
        assert len({tuple(row.tolist()[:64]) for row in rows}) == NUM_SLOTS
        assert 0.05 < float(rows.float().std()) < 0.2
    assert torch.equal(*filled)
