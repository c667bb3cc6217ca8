"""The configuration tree: paths, types, cross-field rules, round trips."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stack.config import EngineConfig, from_dict, load, setting_paths, to_dict, with_settings
from stack.core import ConfigError
from stack.kernels.catalog import OPS


def test_a_tree_survives_a_round_trip_through_json():
    config = with_settings(EngineConfig(), {"cache.kv_dtype": "fp8_e4m3", "graphs.decode_batch_sizes": [1, 2]})
    assert from_dict(json.loads(json.dumps(to_dict(config)))) == config


def test_a_setting_changes_its_own_path_alone():
    before, after = setting_paths(), to_dict(with_settings(EngineConfig(), {"scheduler.chunk_tokens": 4096}))
    assert after["scheduler"].pop("chunk_tokens") == 4096
    expected = to_dict(EngineConfig())
    assert expected["scheduler"].pop("chunk_tokens") == before["scheduler.chunk_tokens"]
    assert after == expected


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"cache.kv_dtyp": "bfloat16"}, "did you mean 'cache.kv_dtype'"),
        ({"cache": {"x": 1}}, "unknown setting 'cache.x'"),
        ({"cache.kv_dtype": "int4"}, "must be one of float32, bfloat16, fp8_e4m3"),
        ({"scheduler.overlap": 1}, "must be true or false"),
        ({"scheduler.chunk_tokens": True}, "must be a whole number"),
        ({"scheduler.chunk_tokens": 0}, "at least 1"),
        ({"cache.page_size": 48}, "power of two"),
        ({"cache.expected_context": -500}, "at least 1, not -500"),
        ({"cache.budget_bytes": -5}, "more than 0, or null"),
        ({"cache.snapshot_slots": -5}, "at least 0, or null"),
        ({"scheduler.extra_inflight": -5}, "must not be negative, as -5 is"),
        ({"speculation.force_accept_length": 9.0}, "between 1 and verify_width"),
        ({"speculation.method": "mtp", "speculation.num_steps": 5}, "num_steps + 1 = 6"),
        ({"role": "decode", "cache.prefix": "hybrid_radix"}, "use kv_radix or none"),
        ({"role": "prefill", "cache.prefix": "kv_radix"}, "use hybrid_radix"),
        ({"server.port": 70000}, "between 0 and 65535"),
        ({"server.max_body_bytes": -1}, "server.max_body_bytes must be at least 1, not -1"),
        ({"server.tokenizer_workers": 0}, "server.tokenizer_workers must be at least 1, not 0"),
        ({"disagg.bootstrap_timeout_s": float("inf")}, "bootstrap_timeout_s must be a finite number, not inf"),
        ({"scheduler.request_deadline_s": float("nan")}, "request_deadline_s must be a finite number, not nan"),
        ({"scheduler.request_deadline_s": -1}, "request_deadline_s must be more than 0 seconds"),
        ({"model.num_threads": -1}, "model.num_threads must be at least 1, not -1"),
        ({"disagg.delay_s": 10**400}, "disagg.delay_s must be a finite number"),
    ],
)
def test_a_mistake_is_refused_with_the_way_out(settings, words):
    with pytest.raises(ConfigError) as caught:
        with_settings(EngineConfig(), settings)
    assert words in str(caught.value)


@given(st.text(max_size=30))
def test_no_path_but_the_trees_own_is_accepted(path):
    if path not in setting_paths() and path not in to_dict(EngineConfig()):
        with pytest.raises(ConfigError):
            with_settings(EngineConfig(), {path: 1})


def test_a_missing_or_broken_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match="no configuration file"):
        load(tmp_path / "absent.json")
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(ConfigError, match=r"broken\.json is not valid JSON"):
        load(tmp_path / "broken.json")


def test_every_op_has_a_setting_and_every_kernel_setting_names_an_op():
    settings = {path.split(".")[1] for path in setting_paths() if path.startswith("kernels.")}
    assert settings - set(OPS) == {"kv_tile", "moe_table", "moe_routes", "moe_routes_steps"}
    assert set(OPS) <= settings
