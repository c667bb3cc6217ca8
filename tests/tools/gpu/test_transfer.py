"""The transfer measurement, in miniature: two real servers, all layers' pages, a model of four layers."""

import json

import pytest

from stack.cache import layout_from_config
from stack.config import EngineConfig, with_settings
from stack.models.tiny import write_tiny
from tools.gpu.transfer.__main__ import main


def test_pools_hold_all_layers_though_few_compute(tmp_path):
    write_tiny(tmp_path, dtype="float32")
    cut = with_settings(EngineConfig(), {"model.path": str(tmp_path), "model.num_layers": 4})
    whole = layout_from_config(with_settings(cut, {"model.num_layers": None}))
    assert layout_from_config(with_settings(cut, {"cache.all_layers": True})) == whole
    assert layout_from_config(cut).page_bytes < whole.page_bytes


@pytest.mark.slow
def test_a_shared_half_travels_once_and_every_byte_is_accounted_for(tmp_path):
    write_tiny(tmp_path / "model", dtype="float32")
    arguments = ["--out", str(tmp_path / "out"), "--model", str(tmp_path / "model"), "--prompt", "256", "--chunk", "64"]
    arguments += ["--page", "64", "--kv", "float32", "--budget-gib", "1", "--num", "2", "--warm", "1", "--at-once", "1"]
    arguments += ["--prefixes", "0,0.5", "--set", "model.compute_dtype=float32", "--set", "cache.conv_dtype=float32"]
    assert main(arguments) == 0
    found = json.loads((tmp_path / "out" / "transfer.json").read_text())
    cold, half = found["rows"]
    assert cold["bytes"] - half["bytes"] == 2 * found["page_bytes"]
    assert half["bytes"] == 2 * found["page_bytes"] + found["slot_bytes"]
    assert 0 < half["tail_ms_p50"] <= half["handoff_ms_p95"]
    assert (tmp_path / "out" / "transfer.md").read_text().count("\n") == 4
