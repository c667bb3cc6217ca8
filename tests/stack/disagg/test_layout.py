import pytest

from stack.config import EngineConfig, with_settings
from stack.core.errors import ConfigError
from stack.core.geometry import ModelGeometry
from stack.disagg.layout import differences, layout_hash, layout_of
from stack.models.tiny import TEXT_CONFIG
from stack.transfer import Pools, Spans

GEOMETRY = ModelGeometry.from_hf(TEXT_CONFIG)
POOLS = Pools(pages=Spans(base=0, item_bytes=10, count=1), slots=Spans(base=0, item_bytes=20, count=1))


def layout(pools=POOLS, **settings):
    changed = with_settings(EngineConfig(), {name.replace("__", "."): value for name, value in settings.items()})
    return layout_of(changed, GEOMETRY, pools)


@pytest.mark.parametrize(
    "settings",
    [
        {"cache__page_size": 128},
        {"cache__kv_dtype": "fp8_e4m3"},
        {"cache__state_dtype": "bfloat16"},
        {"cache__conv_dtype": "float32"},
        {"cache__index_dtype": "bfloat16"},
        {"speculation__method": "mtp"},
        {"speculation__method": "dflash2", "cache__draft_kv": "full"},
        {"model__num_layers": 2},
        {"model__weights": "random"},
        {"model__compute_dtype": "float32"},
    ],
    ids=str,
)
def test_whatever_changes_the_meaning_of_a_byte_changes_the_hash(settings):
    assert layout_hash(layout(**settings)) != layout_hash(layout())
    assert differences(layout(), layout(**settings))


@pytest.mark.parametrize(
    "settings", [{"server__port": 1}, {"scheduler__chunk_tokens": 64}, {"cache__prefix": "hybrid_radix"}], ids=str
)
def test_what_changes_no_byte_keeps_the_hash(settings):
    assert layout_hash(layout(**settings)) == layout_hash(layout())


def test_a_difference_names_both_values():
    other = Pools(pages=Spans(base=0, item_bytes=99, count=1), slots=POOLS.slots)
    assert differences(layout(), layout(other)) == "page_bytes: prefill 10, decode 99"
    assert differences({"a": 1}, {}) == "a: prefill 1, decode unset"
    assert differences(layout(), layout()) == ""


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("bootstrap_timeout_s", 0.0),
        ("transfer_timeout_s", -1.0),
        ("abort_ack_timeout_s", 3.0),
        ("heartbeat_interval_s", 0.0),
        ("delay_s", -0.1),
    ],
)
def test_times_that_cannot_work_are_refused(name, value):
    with pytest.raises(ConfigError, match=f"disagg.{name}"):
        with_settings(EngineConfig(), {f"disagg.{name}": value})
