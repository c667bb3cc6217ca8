"""A refusal names settings; each of them, applied, makes the plan succeed."""

import json
import re

import pytest

from stack.cache import cache_layout
from stack.cache.budget import solve
from stack.config import EngineConfig, with_settings
from stack.core import CapacityError

MIB, GIB = 2**20, 2**30
CPU = {"role": "decode", "model.compute_dtype": "float32", "cache.page_size": 64}
GPU = {"role": "decode", "model.device": "cuda", "cache.page_size": 256, "cache.expected_context": 65_536}
AUTO = {"cache.pool_split": "auto"}
RADIX = {"cache.prefix": "kv_radix", "cache.expected_shared": 65_472}
NOT_ENOUGH = {
    "a budget of nothing": (CPU | {"cache.budget_bytes": 1000}, {}, {"budget_bytes"}),
    "pages too many": (
        CPU | {"cache.budget_bytes": 40 * MIB},
        {},
        {"expected_context", "extra_inflight", "budget_bytes"},
    ),
    "output too long": (
        CPU | {"cache.expected_output": 4095, "cache.expected_context": 1, "cache.budget_bytes": 40 * MIB},
        {},
        {"expected_output", "extra_inflight", "budget_bytes"},
    ),
    "more than the model takes": (
        CPU | {"cache.expected_context": 10**6, "cache.budget_bytes": 40 * MIB},
        {},
        {"expected_context", "extra_inflight", "budget_bytes"},
    ),
    "slots' share too small": (
        CPU | AUTO | {"cache.auto_state_share": 0.01, "cache.budget_bytes": 100 * MIB},
        {},
        {"auto_state_share", "pool_split", "budget_bytes"},
    ),
    "pages' share too small": (
        CPU | AUTO | {"cache.auto_state_share": 0.9, "cache.budget_bytes": 100 * MIB},
        {},
        {"auto_state_share", "pool_split", "expected_context", "extra_inflight", "budget_bytes"},
    ),
    "too many asked for": (
        CPU | {"scheduler.max_running": 10, "cache.budget_bytes": 100 * MIB},
        {},
        {"max_running", "expected_context", "budget_bytes"},
    ),
    "too many for any instance": (CPU | {"scheduler.max_running": 10**6}, {}, {"max_running"}),
    "states kept for later": (
        CPU | {"role": "prefill", "cache.prefix": "hybrid_radix", "cache.snapshot_slots": 1000},
        {},
        {"snapshot_slots", "budget_bytes"},
    ),
    "a long prefix that all share": (
        GPU | RADIX | {"cache.budget_bytes": GIB},
        {},
        {"expected_context", "extra_inflight", "budget_bytes"},
    ),
    "a budget beyond the device": (
        GPU | {"cache.budget_bytes": 60 * GIB},
        {"free_bytes": 139 * GIB, "weights": 80 * GIB},
        {"budget_bytes"},
    ),
    "a device with room for a part": (
        GPU | {"cache.budget_bytes": 60 * GIB},
        {"free_bytes": 83 * GIB, "weights": 80 * GIB},
        {"budget_bytes", "expected_context", "extra_inflight"},
    ),
    "nothing but all together": (
        GPU | {"cache.budget_bytes": 60 * GIB, "scheduler.max_running": 40},
        {"free_bytes": 81 * GIB + 600 * MIB, "weights": 80 * GIB},
        {"max_running", "extra_inflight", "budget_bytes", "expected_context"},
    ),
    "a share that is too small": (
        GPU | {"cache.mem_fraction": 0.5},
        {"free_bytes": 139 * GIB, "weights": 80 * GIB},
        {"mem_fraction"},
    ),
}


def ways_in(message):
    """Each way out as the settings that it names."""
    ways = [
        re.findall(r"((?:cache|scheduler)\.\w+) to ([\w.]+)", way) for way in message.split(": ")[-1].split(", or ")
    ]
    return [{path: value if value == "solved" else json.loads(value) for path, value in way} for way in ways]


@pytest.mark.parametrize("name", NOT_ENOUGH)
def test_every_setting_that_a_refusal_names_makes_the_plan_succeed(name, request):
    choices, device, expected = NOT_ENOUGH[name]
    geometry = request.getfixturevalue("quarter" if "model.device" in choices else "tiny")

    def planned(changes):
        config = with_settings(EngineConfig(), choices | changes)
        return solve(geometry, cache_layout(geometry, config), config, **device)

    with pytest.raises(CapacityError) as refused:
        planned({})
    ways = ways_in(str(refused.value))
    assert {path.split(".")[1] for way in ways for path in way} == expected, str(refused.value)
    for way in ways:
        assert way and planned(way).max_running >= 1, way


def test_where_nothing_helps_no_setting_is_named(quarter):
    config = with_settings(EngineConfig(), GPU | {"cache.budget_bytes": GIB})
    with pytest.raises(CapacityError, match="take a smaller model or a larger device") as refused:
        solve(quarter, cache_layout(quarter, config), config, free_bytes=40 * GIB, weights=80 * GIB)
    assert "set " not in str(refused.value)
