"""The kernels' CPU implementations on the pools' strided views: the same bytes as on tensors of their own."""

import pytest
import torch

from stack.cache import cache_layout
from stack.cache.pages import PagePool
from stack.cache.states import StatePool
from stack.config import EngineConfig, with_settings
from stack.kernels.index_write.torch_pool import index_write
from stack.kernels.latent_write.torch_scatter import latent_write
from stack.kernels.sparse_mla.torch_gather import sparse_mla

P, TOKENS, SLOT, LAYER = 8, 21, 2, 1
TABLE = [5, 2, 7]


def pools_of(geometry, settings):
    config = with_settings(EngineConfig(), {"cache.page_size": P, "model.compute_dtype": "float32"} | settings)
    layout = cache_layout(geometry, config)
    return PagePool(layout, 8, "cpu", poison=True), StatePool(layout, 3, 0, "cpu", poison=True)


def slots_of(tokens):
    return torch.tensor([TABLE[token // P] * P + token % P for token in tokens])


def fill(pages, states, latent_scale=1.0):
    """Write 21 tokens of one request through one layer's views; returns what was written where."""
    draw = torch.Generator().manual_seed(0)
    latent = torch.randn(TOKENS, 512, generator=draw)
    key, gate = torch.randn(2, TOKENS, 128, generator=draw)
    latent_write(latent, torch.full((512,), latent_scale), pages.latents(LAYER), slots_of(range(TOKENS)), eps=1e-5)
    page_table = torch.zeros(4, 3, dtype=torch.int32)
    page_table[SLOT] = torch.tensor(TABLE)
    views = (states.tails(LAYER), pages.index_codes(LAYER), pages.index_scales(LAYER))
    rows = {
        "page_table_SP": page_table,
        "slot_R": torch.tensor([SLOT], dtype=torch.int32),
        "request_T": torch.zeros(TOKENS, dtype=torch.int32),
        "position_T": torch.arange(TOKENS, dtype=torch.int32),
        "start_R1": torch.tensor([0, TOKENS], dtype=torch.int32),
        "write_T": slots_of(range(TOKENS)),
    }
    ape = torch.randn(4, 128, generator=draw)
    index_write(key, gate, torch.ones(128), torch.zeros(128), ape, *views, **rows)
    plain = [
        torch.empty_like(view, memory_format=torch.contiguous_format) if view is not None else None for view in views
    ]
    for tensor in plain:
        if tensor is not None:
            tensor.view(torch.uint8).fill_(255)
            tensor[0] = 0
    index_write(key, gate, torch.ones(128), torch.zeros(128), ape, *plain, **rows)
    return views, plain


@pytest.mark.parametrize("index_dtype", ["fp8_e4m3", "float32"])
def test_index_rows_are_the_same_through_a_view(tiny, index_dtype):
    views, plain = fill(*pools_of(tiny, {"cache.index_dtype": index_dtype}))
    for view, tensor in zip(views, plain, strict=True):
        if view is not None:
            assert torch.equal(view.contiguous().view(torch.uint8), tensor.view(torch.uint8))


def test_one_layer_leaves_every_other_byte_alone(tiny):
    pages, states = pools_of(tiny, {})
    fill(pages, states)
    for view in (pages.latents(0), pages.index_codes(0), pages.index_scales(0), states.tails(0)):
        assert view[1:].float().isnan().all()
    untouched = [page for page in range(1, 9) if page not in TABLE]
    assert pages.bytes_NB[untouched].eq(255).all() and not pages.bytes_NB[0].any()


@pytest.mark.parametrize("kv_dtype", ["bfloat16", "fp8_e4m3"])
def test_latents_saturate_and_land_by_token_slot(tiny, kv_dtype):
    pages, states = pools_of(tiny, {"cache.kv_dtype": kv_dtype})
    fill(pages, states, latent_scale=400.0)
    rows = pages.latents(LAYER).float()[torch.tensor(TABLE)].view(-1, 512)[:TOKENS]
    assert rows.isfinite().all()
    assert (rows.abs().max() == 448) == (kv_dtype == "fp8_e4m3")


@pytest.mark.parametrize("kv_dtype", ["float32", "bfloat16", "fp8_e4m3"])
def test_one_hot_rows_come_back_from_the_pages_that_the_index_names(tiny, kv_dtype):
    """Each cached row's only value says which token it is; a scrambled index must give another answer."""
    pages, _ = pools_of(tiny, {"cache.kv_dtype": kv_dtype})
    latents = pages.latents(LAYER)
    for token in range(TOKENS):
        row = torch.zeros(512)
        row[token] = 1.0
        latents[TABLE[token // P], token % P] = row.to(latents.dtype)
    chosen = [0, 7, 8, 13, 20]
    index = torch.full((1, 64), -1, dtype=torch.int32)
    index[0, : len(chosen)] = slots_of(chosen).to(torch.int32)
    query = torch.zeros(1, 4, 512)
    want = torch.zeros(512)
    want[chosen] = 1 / len(chosen)
    got = sparse_mla(query, latents, index, scale=1.0)
    torch.testing.assert_close(got, want.expand(1, 4, 512), atol=1e-6, rtol=0)
    index[0, : len(chosen)] = slots_of([1, 7, 8, 13, 20]).to(torch.int32)
    assert not torch.allclose(sparse_mla(query, latents, index, scale=1.0), got)
