"""Weight bytes against what is known of the released checkpoints, and against files on disk."""

from dataclasses import replace

import pytest

from stack.cache.weights import draft_bytes, geometry_bytes, header_bytes, weight_bytes
from stack.config import EngineConfig, with_settings
from stack.core import ConfigError, ModelGeometry
from stack.models.tiny import write_tiny


def test_a_quarter_slice_weighs_80_gb(quarter):
    assert geometry_bytes(quarter, has_mtp=False) == pytest.approx(80.3e9, rel=2e-3)
    mtp = geometry_bytes(quarter, has_mtp=True) - geometry_bytes(quarter, has_mtp=False)
    assert mtp == pytest.approx(1.94e9, rel=2e-3)


def test_the_release_weighs_what_its_inventory_says(quarter):
    release = replace(
        quarter,
        num_heads=64,
        kda_num_heads=64,
        num_experts=288,
        dense_intermediate_size=12288,
        shared_intermediate_size=2048,
        vocab_size=154_880,
    )
    assert geometry_bytes(release, has_mtp=False) == pytest.approx(319.7e9, rel=2e-4)
    mtp = geometry_bytes(release, has_mtp=True) - geometry_bytes(release, has_mtp=False)
    assert mtp == pytest.approx(7.493e9, rel=2e-4)


def test_the_released_draft_is_exact_to_the_byte(tiny_draft):
    draft = replace(
        tiny_draft,
        vocab_size=154_880,
        hidden_size=4096,
        num_layers=5,
        num_heads=32,
        num_kv_heads=8,
        head_dim=128,
        intermediate_size=12_288,
        target_layer_ids=(5, 14, 24, 33, 42),
        conv_group_size=16,
        selector_rank=256,
    )
    assert draft_bytes(draft) == 2_342_160_896


@pytest.mark.parametrize("fp8", [False, True])
def test_formula_and_files_agree(tmp_path, fp8):
    write_tiny(tmp_path, fp8=fp8)
    geometry = ModelGeometry.from_file(tmp_path)
    assert geometry.is_fp8 == fp8
    for has_mtp in (False, True):
        files = header_bytes(tmp_path, geometry.num_layers, geometry.num_layers if has_mtp else -1)
        # The small FP8 checkpoint leaves its kv_a projections in BF16: 1.2 % of its bytes, nothing of the release's.
        assert geometry_bytes(geometry, has_mtp=has_mtp) == pytest.approx(files, rel=0.013 if fp8 else 0.001)


def test_a_truncated_model_counts_its_layers_alone(tmp_path):
    write_tiny(tmp_path)
    geometry = ModelGeometry.from_file(tmp_path)
    config = with_settings(EngineConfig(), {"model.path": str(tmp_path)})
    whole, half = (weight_bytes(config, geometry.truncated(count), None) for count in (None, 4))
    assert half < 0.6 * whole
    with pytest.raises(ConfigError, match="between 1 and 9"):
        geometry.truncated(10)


def test_a_folder_without_weights_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="random"):
        header_bytes(tmp_path, 1)
