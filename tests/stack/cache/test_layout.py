"""The byte layout against the published sizes, and what two instances must agree on."""

import json
from dataclasses import replace

import pytest

from stack.cache import cache_layout, explain_mismatch
from stack.cache.layout import layout_from_config
from stack.config import EngineConfig, with_settings
from stack.core import ConfigError
from stack.models.tiny import TEXT_CONFIG

BF16 = {"cache.page_size": 256}
FP8 = BF16 | {"cache.kv_dtype": "fp8_e4m3", "cache.state_dtype": "bfloat16"}
DFLASH = FP8 | {"speculation.method": "dflash2", "speculation.draft_path": "draft"}
MTP = FP8 | {"speculation.method": "mtp"}


def layout_of(geometry, settings, draft=None):
    return cache_layout(geometry, with_settings(EngineConfig(), settings), draft)


def test_a_page_costs_the_published_bytes_per_token(quarter):
    assert layout_of(quarter, FP8).page_bytes == 256 * 5995
    assert layout_of(quarter, BF16).page_bytes == 256 * 11 * (1024 + 33)


def test_the_published_baselines_page_holds_an_index_row_for_every_token(quarter):
    pooled, per_token = (layout_of(quarter, BF16 | {"cache.index_layout": kind}) for kind in ("pooled", "per_token"))
    assert per_token.page_bytes == 256 * 11 * (1024 + 132)
    assert per_token.page_parts["empty_index"] == per_token.page_bytes - pooled.page_bytes
    assert [at.scales_offset(2) - at.codes_offset(2) for at in (pooled, per_token)] == [64 * 128] * 2


def test_a_slot_costs_the_published_state_and_windows(quarter):
    for settings, state in ((BF16, 35_651_584), (FP8, 17_825_792)):
        parts = layout_of(quarter, settings).slot_parts
        assert (parts["state"], parts["conv"]) == (state, 1_253_376)


def test_mtp_adds_one_paged_layer(quarter):
    plain, mtp = layout_of(quarter, FP8), layout_of(quarter, MTP)
    assert mtp.num_paged_layers == plain.num_paged_layers + 1
    assert mtp.page_bytes - plain.page_bytes == 256 * (512 + 33)


def test_a_drafts_context_costs_rows_of_every_token_or_one_window(quarter, quarter_draft):
    plain = layout_of(quarter, FP8)
    full = layout_of(quarter, DFLASH | {"cache.draft_kv": "full"}, quarter_draft)
    ring = layout_of(quarter, DFLASH, quarter_draft)
    assert full.page_bytes - plain.page_bytes == 256 * 5120
    assert ring.page_bytes == plain.page_bytes
    assert ring.slot_parts["draft"] == 2048 * 5120


def test_the_index_tail_holds_an_open_pool_and_a_verify(quarter):
    assert layout_of(quarter, FP8).tail_ring == 4 + 1
    assert layout_of(quarter, MTP).tail_ring == 4 + 8


def test_one_head_is_one_span_of_neighbours(quarter):
    layout = layout_of(quarter, FP8)
    assert layout.state_head_bytes == 34 * 128 * 128 * 2
    assert layout.conv_head_bytes == 34 * 3 * 128 * 3 * 2


def test_replay_inputs_cost_what_a_verify_row_holds(quarter):
    layout = layout_of(quarter, MTP)
    row = 2 * 2048 * 2 + 2048 * 4 + 16 * 4 + 6144 * 2
    assert layout.ring_entry_bytes == 34 * 8 * row
    assert layout.snapshot_entry_bytes == 8 * 17_825_792
    assert layout_of(quarter, FP8).ring_entry_bytes == 0


@pytest.mark.parametrize(
    "settings",
    [
        BF16,
        FP8,
        MTP,
        BF16 | {"cache.index_layout": "per_token"},
        {"cache.page_size": 4, "model.compute_dtype": "float32"},
    ],
)
def test_every_part_starts_where_its_items_can(tiny, settings):
    layout = layout_of(tiny, settings)
    assert layout.page_bytes % 256 == layout.slot_bytes % 256 == 0
    for layer in range(layout.num_paged_layers):
        assert layout.latent_offset(layer) % 16 == layout.codes_offset(layer) % 16 == 0
        assert layout.scales_offset(layer) % 4 == 0
    for offset in (layout.conv_offset, layout.tail_offset, layout.draft_ring_offset):
        assert offset % 256 == 0


def test_the_hash_moves_with_everything_two_instances_must_agree_on(tiny, tiny_draft):
    base = layout_of(tiny, DFLASH, tiny_draft)
    changes = [
        {"cache.page_size": 64},
        {"cache.kv_dtype": "bfloat16"},
        {"cache.index_dtype": "bfloat16"},
        {"cache.index_layout": "per_token"},
        {"cache.state_dtype": "float32"},
        {"cache.conv_dtype": "float32"},
        {"cache.draft_kv": "full"},
        {"model.compute_dtype": "float32"},
        {"model.weights": "random"},
        {"speculation.verify_width": 6},
    ]
    hashes = {layout_of(tiny, DFLASH | change, tiny_draft).layout_hash for change in changes}
    others = {
        layout_of(replace(tiny, num_experts=16), DFLASH, tiny_draft).layout_hash,
        layout_of(tiny.truncated(2), DFLASH, tiny_draft).layout_hash,
        layout_of(tiny, FP8).layout_hash,
        layout_of(tiny, MTP).layout_hash,
    }
    assert len(hashes | others | {base.layout_hash}) == len(changes) + len(others) + 1


def test_the_hash_ignores_what_an_instance_decides_alone(tiny):
    base = layout_of(tiny, FP8)
    assert base.layout_hash == layout_of(tiny, FP8 | {"cache.budget_bytes": 10**9, "role": "decode"}).layout_hash


def test_a_mismatch_names_both_values(tiny):
    ours = layout_of(tiny, FP8).description
    theirs = layout_of(tiny, FP8 | {"cache.kv_dtype": "bfloat16"}).description
    assert "kv_dtype is fp8_e4m3 here and bfloat16 there" in explain_mismatch(ours, theirs)
    assert explain_mismatch(ours, ours) == ""
    assert "kv_dtype is fp8_e4m3 on prefill and absent on decode" in explain_mismatch(
        ours, {}, here="on prefill", there="on decode"
    )


def test_what_cannot_be_laid_out_is_refused_with_the_way_out(tiny, tiny_draft):
    with pytest.raises(ConfigError, match="multiple of the model's index_kpool"):
        layout_of(tiny, {"cache.page_size": 2})
    with pytest.raises(ConfigError, match="needs a model with an MTP layer"):
        layout_of(replace(tiny, num_mtp_layers=0), MTP)
    with pytest.raises(ConfigError, match="draft_path"):
        layout_of(tiny, DFLASH)
    with pytest.raises(ConfigError, match="must not exceed the draft's block"):
        layout_of(tiny, DFLASH | {"speculation.verify_width": 16}, tiny_draft)


def test_a_truncated_model_without_a_paged_layer_is_refused_with_the_least_number():
    settings = {"model.path": "workloads/checkpoints/tiny_trained", "model.num_layers": 2}
    with pytest.raises(ConfigError, match="at least 3, not 2"):
        layout_from_config(with_settings(EngineConfig(), settings))
    layout_from_config(with_settings(EngineConfig(), {**settings, "cache.all_layers": True}))


def test_a_model_without_sparse_attention_is_refused_in_one_sentence(tmp_path):
    kinds = ["linear_attention"] * TEXT_CONFIG["num_hidden_layers"]
    (tmp_path / "config.json").write_text(json.dumps({**TEXT_CONFIG, "layer_types": kinds}))
    for settings in ({}, {"model.num_layers": 2}, {"cache.all_layers": True}):
        with pytest.raises(ConfigError, match=r"has no layer of sparse attention.*layer_types"):
            layout_from_config(with_settings(EngineConfig(), {"model.path": str(tmp_path), **settings}))
