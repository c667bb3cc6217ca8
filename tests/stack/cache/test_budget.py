"""The memory solver: the published columns, the ladder from one budget, refusals that name what fits."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stack.cache import cache_layout
from stack.cache.budget import GIB, MAX_WORKSPACE_BYTES, solve
from stack.config import EngineConfig, with_settings
from stack.core import CapacityError

LOAD = {
    "role": "decode",
    "model.device": "cuda",
    "cache.page_size": 256,
    "cache.expected_context": 65_536,
    "cache.expected_output": 1024,
    "cache.expected_shared": 65_472,
}
BASELINE = LOAD | {"scheduler.extra_inflight": 0, "cache.index_layout": "per_token"}
FINAL = LOAD | {
    "cache.kv_dtype": "fp8_e4m3",
    "cache.state_dtype": "bfloat16",
    "cache.prefix": "kv_radix",
    "cache.slots_per_request": 3,
    "cache.draft_kv": "full",
    "cache.replay_ring": "per_slot",
    "speculation.method": "dflash2",
    "speculation.draft_path": "draft",
}
FP8 = LOAD | {"cache.kv_dtype": "fp8_e4m3"}
MTP516 = FP8 | {"speculation.method": "mtp", "speculation.num_steps": 5, "speculation.verify_width": 6}
REPLAY = MTP516 | {"speculation.commit": "replay", "cache.state_dtype": "bfloat16"}
RADIX = REPLAY | {"cache.prefix": "kv_radix"}
DFLASH = RADIX | {
    "speculation.method": "dflash2",
    "speculation.num_steps": 7,
    "speculation.verify_width": 8,
    "speculation.draft_path": "draft",
}
TARGET = ("target KV", "empty index rows")
LADDER = {
    "baseline": LOAD,
    "fp8_kv": FP8,
    "mtp516": MTP516 | {"speculation.commit": "snapshot"},
    "replay_bf16": REPLAY,
    "kv_radix": RADIX,
    "dflash2": DFLASH,
}


def plan_of(geometry, draft, choices, budget=None):
    changes = choices if budget is None else choices | {"cache.budget_bytes": int(budget)}
    config = with_settings(EngineConfig(), changes)
    return solve(geometry, cache_layout(geometry, config, draft), config)


def term(plan, *names):
    return sum(line.num_bytes for line in plan.terms if line.name in names)


def published_budget(geometry, draft, choices, gib):
    """The printed pools, and what the report does not print: tails, rings, workspace, padding."""
    plan = plan_of(geometry, draft, choices, 1000 * GIB)
    printed = term(plan, "recurrent states", "convolution windows", *TARGET, "draft KV")
    return gib * GIB + sum(line.num_bytes for line in plan.terms if line.is_cache) - printed


def test_the_published_baseline_column(quarter, quarter_draft):
    choices = BASELINE | {"scheduler.max_running": 56}
    budget = published_budget(quarter, quarter_draft, choices, 46.72 + 1.96)
    plan = plan_of(quarter, quarter_draft, choices, budget)
    states = term(plan, "recurrent states", "convolution windows")
    assert plan.num_slots + 1 == 57
    assert states / 57 == pytest.approx(36.9e6, rel=1e-3)
    assert states / GIB == pytest.approx(1.96, abs=0.005)
    assert term(plan, *TARGET) / GIB == pytest.approx(46.72, abs=0.01)
    assert term(plan, "empty index rows") == (plan.num_pages + 1) * 11 * 192 * 132, "three in four, held and named"
    assert plan.max_total_tokens == pytest.approx(3.945e6, rel=5e-4)


def test_the_published_final_column(quarter, quarter_draft):
    choices = FINAL | {"scheduler.max_running": 132}
    budget = published_budget(quarter, quarter_draft, choices, 14.00 + 11.96 + 7.37)
    plan = plan_of(quarter, quarter_draft, choices, budget)
    states = term(plan, "recurrent states", "convolution windows")
    assert plan.num_slots == (132 + 6) * 3 == 414
    assert states / 415 == pytest.approx(19.08e6, rel=1e-3)
    assert states / GIB == pytest.approx(7.37, abs=0.01)
    assert term(plan, "target KV") / GIB == pytest.approx(14.00, abs=0.01)
    assert term(plan, "draft KV") / GIB == pytest.approx(11.96, abs=0.01)
    assert plan.max_total_tokens == pytest.approx(2.508e6, rel=1e-3)
    assert plan.planned_pages_ratio < 0.12, "the published pool was 7 % full at the median"


def test_limits_of_the_ladder_emerge_from_one_budget(quarter, quarter_draft):
    """Each change moves the limit as published: up with FP8, down with snapshots, up with replay, up with sharing."""
    limits = {
        row: plan_of(quarter, quarter_draft, choices, 48.68 * GIB + MAX_WORKSPACE_BYTES).max_running
        for row, choices in LADDER.items()
    }
    print(limits)
    assert limits["baseline"] < limits["fp8_kv"]
    assert limits["baseline"] < limits["mtp516"] < limits["fp8_kv"], "draft KV and snapshots cost requests"
    assert limits["mtp516"] < limits["replay_bf16"] < limits["kv_radix"]
    assert limits["replay_bf16"] < limits["dflash2"]


def test_a_drafts_ring_costs_requests_that_an_mtp_row_does_not(quarter, quarter_draft):
    """Under full sharing the block drafter's context is the price of its speed, ring or not."""
    kinds = {"mtp": RADIX, "ring": DFLASH, "full": DFLASH | {"cache.draft_kv": "full"}}
    limits = {name: plan_of(quarter, quarter_draft, kind, 48 * GIB).max_running for name, kind in kinds.items()}
    assert limits["ring"] < limits["mtp"] and limits["full"] < limits["mtp"]


def test_without_sharing_a_ring_beats_rows_of_every_token(quarter, quarter_draft):
    ring = DFLASH | {"cache.prefix": "none"}
    limits = [
        plan_of(quarter, quarter_draft, choices, 48 * GIB).max_running
        for choices in (ring | {"cache.draft_kv": "full"}, ring)
    ]
    assert limits[0] * 1.7 < limits[1]


@pytest.mark.parametrize("row", LADDER)
def test_limits_move_with_the_budget(quarter, quarter_draft, row):
    limits = [plan_of(quarter, quarter_draft, LADDER[row], gib * GIB).max_running for gib in (24, 36, 48)]
    assert limits[0] < limits[1] < limits[2]


def test_a_fixed_split_leaves_states_idle_while_pages_are_full(quarter, quarter_draft):
    """The report's starting point: about 5 % of the state pool in use, KV nearly full."""
    auto = plan_of(quarter, quarter_draft, BASELINE | {"cache.pool_split": "auto"}, 49 * GIB)
    solved = plan_of(quarter, quarter_draft, BASELINE, 49 * GIB)
    assert 0.03 < auto.planned_slots_ratio < 0.07
    assert auto.planned_pages_ratio > 0.96
    assert solved.max_running > 1.8 * auto.max_running
    assert auto.slots_limit > 10 * auto.pages_limit


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(LADDER)), st.integers(1, 80 * 2**30), st.sampled_from(["solved", "auto"]))
def test_what_is_planned_stays_inside_the_budget_and_holds_the_load(row, budget, split):
    geometry, draft = _geometries()
    try:
        plan = plan_of(geometry, draft, LADDER[row] | {"cache.pool_split": split}, budget)
    except CapacityError:
        return
    assert sum(line.num_bytes for line in plan.terms if line.is_cache) <= budget
    assert plan.load.num_pages(plan.max_running) <= plan.num_pages
    assert plan.load.num_slots(plan.max_running) <= plan.num_slots
    assert 0 < plan.max_running <= min(plan.pages_limit, plan.slots_limit)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(LADDER)), st.integers(2**28, 40 * 2**30))
def test_one_request_more_would_not_fit(row, budget):
    geometry, draft = _geometries()
    try:
        most = plan_of(geometry, draft, LADDER[row], budget).max_running
    except CapacityError:
        return
    assert plan_of(geometry, draft, LADDER[row] | {"scheduler.max_running": most}, budget).max_running == most
    with pytest.raises(CapacityError, match=f"at most {most} fit"):
        plan_of(geometry, draft, LADDER[row] | {"scheduler.max_running": most + 1}, budget)


def test_a_context_that_cannot_fit_is_refused_with_the_largest_that_does(quarter, quarter_draft):
    with pytest.raises(CapacityError) as refused:
        plan_of(quarter, quarter_draft, LOAD, 2 * GIB)
    context = int(re.search(r"set cache.expected_context to (\d+)", str(refused.value))[1])
    assert 0 < context < 65_536
    plan = plan_of(quarter, quarter_draft, LOAD | {"cache.expected_context": context}, 2 * GIB)
    assert plan.max_running >= 1
    with pytest.raises(CapacityError):
        plan_of(quarter, quarter_draft, LOAD | {"cache.expected_context": context + 2 * 256}, 2 * GIB)


def test_a_budget_below_one_slot_names_what_needs_more(quarter, quarter_draft):
    with pytest.raises(CapacityError, match=r"of pages, 281\.78 MiB of slots and rings") as refused:
        plan_of(quarter, quarter_draft, LOAD, 1 << 20)
    assert "expected_context" not in str(refused.value), "no context is short enough"


def test_extra_requests_in_flight_are_paid_for(quarter, quarter_draft):
    limits = [
        plan_of(quarter, quarter_draft, BASELINE | {"scheduler.extra_inflight": extra}, 48 * GIB).max_running
        for extra in (0, 6, 12)
    ]
    assert limits[0] - limits[1] == limits[1] - limits[2] == 6


def test_a_ring_for_running_requests_alone_saves_what_idle_slots_would_hold(quarter, quarter_draft):
    per_slot = plan_of(quarter, quarter_draft, FINAL, 40 * GIB)
    per_running = plan_of(quarter, quarter_draft, FINAL | {"cache.replay_ring": "per_running"}, 40 * GIB)
    assert per_slot.num_ring_entries == per_slot.num_slots
    assert per_running.num_ring_entries == per_running.max_running > per_slot.max_running


def test_prompts_that_are_shared_whole_need_a_page_each_all_the_same(tiny):
    shared = {"role": "prefill", "cache.prefix": "hybrid_radix", "cache.expected_context": 128}
    plan = plan_of(tiny, None, shared | {"cache.expected_shared": 128, "scheduler.max_running": 3})
    assert plan.load.private_pages == 1 and plan.load.num_pages(3) == 2 + 3


def test_a_prefill_instance_keeps_states_for_later_prompts_and_no_ring(quarter, quarter_draft):
    choices = DFLASH | {"role": "prefill", "cache.prefix": "hybrid_radix"}
    plan = plan_of(quarter, quarter_draft, choices, 48 * GIB)
    assert plan.num_ring_entries == 0 and plan.load.extra == 0
    assert plan.num_slots - plan.num_live_slots == pytest.approx(plan.num_slots / 4, abs=1)


def test_memory_outside_the_budget_is_named_and_subtracted(quarter, quarter_draft):
    config = with_settings(EngineConfig(), FINAL)
    layout = cache_layout(quarter, config, quarter_draft)
    plan = solve(quarter, layout, config, free_bytes=140 * 10**9, weights=81 * 10**9)
    outside = [line for line in plan.terms if not line.is_cache]
    assert {line.name for line in outside} == {"weights", "graphs", "activations"}
    assert plan.budget_bytes == int(0.85 * 140 * 10**9) - sum(line.num_bytes for line in outside)


def test_a_given_budget_is_held_against_the_device(quarter, quarter_draft):
    config = with_settings(EngineConfig(), FINAL | {"cache.budget_bytes": 48 * GIB})
    layout = cache_layout(quarter, config, quarter_draft)
    plan = solve(quarter, layout, config, free_bytes=139 * GIB, weights=75 * GIB)
    assert "left on the device" in plan.table() and plan.as_dict()["device_bytes"] == 139 * GIB
    outside = sum(line.num_bytes for line in plan.terms if not line.is_cache)
    exact = plan.budget_bytes + outside
    assert solve(quarter, layout, config, free_bytes=exact, weights=75 * GIB).max_running == plan.max_running
    fewer = solve(quarter, layout, config, free_bytes=exact - 1, weights=75 * GIB)
    assert fewer.max_running == plan.max_running - 1, "the rows of a step need memory as well"
    with pytest.raises(CapacityError, match="does not fit the device"):
        solve(quarter, layout, config, free_bytes=48 * GIB + 75 * GIB, weights=75 * GIB)


def test_what_is_planned_otherwise_than_asked_is_said(tiny):
    asked = {"cache.expected_context": 100_000, "cache.expected_output": 96, "cache.budget_bytes": 10**15}
    plan = plan_of(tiny, None, asked | {"model.compute_dtype": "float32"})
    told = plan.as_dict()
    assert (told["asked_context"], told["planned_context"]) == (100_000, tiny.max_context - 96)
    assert "expected_context 100000 is planned as 4000" in told["notes"] and "expected_output" not in told["notes"]
    assert "no instance runs more than 4096 requests" in told["notes"]
    assert all(f"note: {note}" in plan.table() for note in plan.notes)
    assert not plan_of(tiny, None, {"cache.expected_context": 128}).notes


def test_every_term_is_printed_and_in_the_json(quarter, quarter_draft):
    plan = plan_of(quarter, quarter_draft, FINAL, 40 * GIB)
    for line in plan.terms:
        assert line.name in plan.table() and f"{line.num_bytes:,}" in plan.table()
        assert plan.as_dict()[f"bytes.{line.name.replace(' ', '_')}"] == line.num_bytes
    assert f"{plan.max_running} running" in plan.table()


def test_a_small_model_on_the_cpu_needs_no_budget(tiny):
    config = EngineConfig()
    plan = solve(tiny, cache_layout(tiny, config), config)
    assert plan.budget_bytes == 256 * 2**20 and plan.max_running > 1
    assert plan.max_context <= tiny.max_context


def _geometries():
    from pathlib import Path

    from stack.core import DraftGeometry, ModelGeometry
    from stack.models.tiny import DRAFT_CONFIG

    geometry = ModelGeometry.from_file(Path(__file__).parents[3] / "workloads/checkpoints/quarter")
    return geometry, DraftGeometry.from_hf(DRAFT_CONFIG)
