"""Decode measured by itself, and topologies smaller than the published one: what plans become, and one real session."""

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest

from workflows.catalog import Catalog, load_catalog
from workflows.plan import Plan
from workflows.planner import plan_session
from workflows.schema import DecodeAlone
from workloads.files import read_json, write_json

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    """The CPU testbed holds one decode instance, as one GPU does."""
    found = load_catalog()
    alone = {"decode_alone": DecodeAlone(suites=("decode",))}
    return dataclasses.replace(
        found, testbeds={**found.testbeds, "cpu": found.testbeds["cpu"].model_copy(update=alone)}
    )


def test_a_plan_has_one_decode_instance_and_says_that_its_memory_is_made_up(catalog: Catalog) -> None:
    made = plan_session("decode/plus_kv_only_decode_radix", "sp99_9", testbed_id="cpu", catalog=catalog)
    assert [(p.name, p.role) for p in made.processes] == [("d0", "decode")]
    config = made.processes[0].files["d0.json"]
    assert config["synthetic_admission"] and config["cache"]["prefix"] == "kv_radix"
    assert (made.labels["admission"], made.labels["topology"]) == ("synthetic", "decode alone")
    assert made.client.workload["cache"]["band"] is None
    baseline = plan_session("decode/baseline", "sp99_9", testbed_id="cpu", catalog=catalog)
    assert baseline.client.workload["cache"]["band"] == [0.0, 0.0]


@pytest.mark.parametrize(
    "row", ["plus_kv_only_decode_radix", "dflash2_tuned_moe_dsa_partial", "accept_3_63", "batch_264"]
)
def test_one_gpu_runs_the_rows_that_share_decode_pages(row: str) -> None:
    made = plan_session(f"decode/{row}", "sp99_9", testbed_id="h200x1")
    assert made.processes[0].files["d0.json"]["cache"]["prefix"] == "kv_radix"
    assert made.labels["topology"] == "decode alone"


def test_a_session_gets_as_many_requests_as_the_window_needs_at_the_rows_own_pace() -> None:
    counts = {}
    for row in ("baseline", "dflash2_tuned_moe_dsa_partial", "accept_3_63"):
        made = plan_session(f"decode/{row}", "sp99_9", testbed_id="h200x1")
        counts[row] = made.client.workload["requests_per_pass"]
    tokens_s = {
        "baseline": 58 / 0.02,
        "dflash2_tuned_moe_dsa_partial": 140 * 7.03 / 0.048,
        "accept_3_63": 140 * 3.63 / 0.048,
    }
    for row, fastest in tokens_s.items():
        assert 60 <= counts[row] * 1024 / fastest <= 60 + 2 * 1024 / fastest * 140


def test_two_gpus_hold_one_prefill_and_one_decode_with_a_third_of_the_load() -> None:
    slow = plan_session("integrated/baseline", "sp93_75", testbed_id="h200x2")
    assert slow.client.workload["requests_per_pass"] >= 200, "a P95 needs so many"
    made = plan_session("integrated/optimized", "sp50", testbed_id="h200x2")
    assert [p.name for p in made.processes if p.role != "router"] == ["p0", "d0"]
    assert made.labels["topology"] == "1p1d"
    assert made.client.workload["load"]["concurrency"] == 11


def _run(plan: Plan, folder: Path) -> dict:
    write_json(folder / "plan.json", plan.to_json())
    for module, *arguments in (
        ("workflows.session", str(folder / "plan.json"), str(folder / "s0")),
        ("workflows.measure", str(folder / "s0")),
    ):
        subprocess.run([sys.executable, "-m", module, *arguments], cwd=ROOT, check=True, timeout=280)
    return read_json(folder / "s0" / "metrics.json")


@pytest.mark.slow
def test_a_session_of_decode_alone_is_valid_and_hits_the_pages_that_requests_share(
    catalog: Catalog, tmp_path: Path
) -> None:
    """Forced acceptance, draft rows in the pages, replay, and no other instance."""
    plan = plan_session(
        "decode/dflash2_tuned_moe_dsa_partial", "sp99_9", testbed_id="cpu", catalog=catalog, passes=1, requests=8
    )
    found = _run(plan, tmp_path)
    assert found["validity"]["verdict"] == "VALID", found["validity"]["reasons"]
    assert found["labels"]["admission"] == "synthetic" and found["labels"]["acceptance"] == "forced"
    assert found["metrics"]["cached_ratio"] > 0.8
