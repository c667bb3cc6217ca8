"""Running limits and the loads that follow from them come from bytes, never from a row."""

import dataclasses
import io
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from workflows.catalog import Catalog, load_catalog
from workflows.errors import CatalogError
from workflows.memory import configuration_of, generating_instance, memory_plan
from workflows.memory_report import Question, print_memory
from workflows.plan import Plan
from workflows.planner import plan_session
from workflows.scaling import retuned
from workflows.targets import Selection

ROOT = Path(__file__).resolve().parents[2]
LADDER = ("baseline", "fp8_kv", "fp8_kv_bf16_state", "kv_radix")


def with_budget(num_bytes: int) -> Catalog:
    """The catalogue with another byte budget for the decode ladder of the CPU testbed, and nothing else changed."""
    catalog = load_catalog()
    testbed = catalog.testbeds["cpu"]
    budgets = {**testbed.budgets, "decode": {**testbed.budgets["decode"], "decode": num_bytes}}
    testbeds = {**catalog.testbeds, "cpu": testbed.model_copy(update={"budgets": budgets})}
    return dataclasses.replace(catalog, testbeds=testbeds)


def point(row: str, workload: str, catalog: Catalog | None = None) -> tuple[Plan, int]:
    """A plan and the running limit of the instance that generates."""
    plan = plan_session(f"decode/{row}", workload, testbed_id="cpu", catalog=catalog)
    return plan, memory_plan(configuration_of(generating_instance(plan.processes)), plan.model)["max_running"]


def test_every_step_of_the_capacity_ladder_holds_more_in_the_same_bytes() -> None:
    limits = [point(row, "sp99_9_same")[1] for row in LADDER]
    assert limits == sorted(set(limits)), limits
    loads = {point(row, "sp99_9_same")[0].conditions["scaled"]["concurrency"] for row in LADDER}
    assert len(loads) == 1 and limits[2] < loads.pop(), "the same load for all, and more than the first three hold"


def test_running_limits_and_retuned_loads_move_with_the_budget() -> None:
    small, large = with_budget(64 * 2**20), with_budget(96 * 2**20)
    for row in (*LADDER, "fp8_kv_mtp516"):
        (less, fewer), (more, most) = point(row, "sp99_9_tuned", small), point(row, "sp99_9_tuned", large)
        assert fewer < most
        assert less.conditions["scaled"]["concurrency"] == fewer + max(1, round(fewer * 8 / 132))
        assert less.conditions["scaled"]["concurrency"] < more.conditions["scaled"]["concurrency"]
        assert less.settings["decode"].get("scheduler.max_running") is None


@pytest.mark.parametrize("workload", ["sp99_9", "sp99_9_same", "sp99_9_tuned"])
def test_what_is_planned_for_is_what_is_sent(workload: str) -> None:
    plan = plan_session("decode/baseline", workload, testbed_id="cpu")
    memory = memory_plan(configuration_of(generating_instance(plan.processes)), plan.model)
    sent = plan.conditions["scaled"]
    assert (memory["planned_context"], memory["planned_output"]) == (sent["input_len"], sent["output_len"])


def test_the_published_margin_is_kept() -> None:
    published = load_catalog().testbed("h200x16")
    assert [retuned(limit, published) for limit in (2, 56, 132)] == [3, 59, 140]


def test_extra_requests_in_flight_shrink_with_the_load() -> None:
    assert point("kv_radix", "sp99_9")[0].settings["decode"]["scheduler.extra_inflight"] == 1


def test_workloads_on_request_run_only_where_they_are_named() -> None:
    asked = {"testbed": "cpu", "engine": "default", "rows": ["decode/fp8_kv"], "sessions": 1, "seed": 0,
             "on_failure": "record"}  # fmt: skip
    assert Selection({**asked, "workloads": []}).folders == ["cpu/decode/fp8_kv/sp99_9/s0"]
    tuned = Selection({**asked, "workloads": ["sp99_9_tuned"]}).folders
    assert tuned == ["cpu/decode/fp8_kv/sp99_9_tuned/s0"]
    with pytest.raises(CatalogError, match="did you mean sp99_9_tuned"):
        _ = Selection({**asked, "workloads": ["sp99_9_tune"]}).folders


def test_kernels_are_selected_with_everything_else_where_they_can_be_timed() -> None:
    asked = {
        "testbed": "h200x1",
        "engine": "default",
        "sessions": 1,
        "seed": 0,
        "on_failure": "record",
        "workloads": [],
    }
    folders = Selection({**asked, "rows": ["micro", "prefill"]}).folders
    assert {folder.split("/")[1] for folder in folders} == {"micro", "prefill"}


def test_the_memory_of_a_row_is_printed_term_by_term() -> None:
    command = [sys.executable, "-m", "workflows.cli", "plan", "decode/fp8_kv", "--memory", "--workload", "sp99_9_tuned"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "decode/fp8_kv  sp99_9_tuned" in done.stdout and "memory" in done.stdout
    assert "recurrent states" in done.stdout and "cache budget" in done.stdout
    assert "instance p0" in done.stdout and "instance d0" in done.stdout


def asked(name: str, workload: str, testbed: str, engine: str = "default", catalog: Catalog | None = None) -> str:
    """What `np1d plan --memory` prints."""
    out = Console(file=io.StringIO())
    print_memory(catalog or load_catalog(), Question(name, workload, testbed, engine), out)
    return out.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def only(*rows: str) -> Catalog:
    """The catalogue with these rows alone in their suites; the others are still there as bases."""
    catalog = load_catalog()
    shown = {name: dataclasses.replace(entry, generated=name not in rows) for name, entry in catalog.rows.items()}
    return dataclasses.replace(catalog, rows=shown)


def test_a_row_that_lacks_the_workload_does_not_hide_the_others() -> None:
    text = asked("decode", "sp99_9_tuned", "h200x1", catalog=only("decode/one_slot_running_ring", "decode/batch_264"))
    table, reason = text.splitlines()[1], text.splitlines()[-1]
    assert table.startswith("decode/one_slot_running_ring  sp99_9_tuned") and table.rstrip().endswith("client")
    assert "A re-tuned load stops at 272 requests on h200x1" in text
    assert reason.startswith("decode/batch_264 sp99_9_tuned: decode/batch_264 has no workload sp99_9_tuned")


def test_rings_slots_and_requests_in_flight_stand_in_the_table_and_its_legend() -> None:
    text = asked("decode", "sp99_9_tuned", "cpu", catalog=only("decode/draft_ring"))
    assert "21 x 1.271 MiB, 3 each  14.46 MiB          1" in text
    assert all(
        f"{name}: " in text or f"{name}, " in text for name in ("slots", "rings", "in flight", "by pages", "binds")
    )


@pytest.mark.parametrize(
    ("question", "sentence"),
    [
        (("micro", "", "cpu", "stack"), "nothing of micro runs on cpu: needs kernel_bench: kernel times on a CPU"),
        (("integrated", "", "h200x8", "sglang"), "`np1d list integrated --testbed h200x8 --engine sglang` says why"),
        (
            ("micro", "", "h200x1"),
            "micro times kernels alone and holds no cache; suites that serve are prefill, decode",
        ),
        (("decode", "", "h200x8", "default"), "the published engine plans its memory itself; --testbed h200x1"),
        (("decode", "", "h200x8", "stack"), "nothing of decode runs on h200x8: an instance of our engine has one GPU"),
        (("decode", "", "cpu", "slang"), "there is no engine slang; did you mean sglang?"),
        (("decode", "sp99_9_tune", "cpu"), "decode has no workload sp99_9_tune here; did you mean sp99_9_tuned"),
    ],
)
def test_a_question_without_an_answer_says_the_way_out(question: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(CatalogError) as refused:
        asked(*question)
    assert sentence in str(refused.value)


def test_a_budget_that_the_testbeds_device_has_no_room_for_is_refused() -> None:
    catalog = load_catalog()
    less = catalog.testbeds["h200x1"].model_copy(update={"device_bytes": 100 * 2**30})
    catalog = dataclasses.replace(catalog, testbeds={**catalog.testbeds, "h200x1": less})
    with pytest.raises(
        CatalogError, match=r"does not fit the device.s 100\.00 GiB of free memory: set cache\.budget_bytes"
    ):
        asked("decode/fp8_kv", "sp99_9", "h200x1", catalog=catalog)
    assert "left on the device" in asked("decode/fp8_kv", "sp99_9", "h200x1")


def test_a_model_that_is_not_there_names_the_way_to_it() -> None:
    from workflows.build import ensure_model
    from workflows.errors import SessionError

    with pytest.raises(SessionError, match=r"written by tools/gpu/train_tiny.sh\); put it there, or take another"):
        what = load_catalog().models["tiny_trained"].what
        ensure_model({"name": "x", "what": what, "path": "workloads/checkpoints/nowhere", "build": []})


@pytest.mark.parametrize("workload", ["text_4k", "text_120k"])
def test_natural_text_is_drafted_on_merit_and_fits_the_context(workload: str) -> None:
    plan = plan_session("drafters/dflash2_block8", workload, testbed_id="cpu")
    memory = memory_plan(configuration_of(generating_instance(plan.processes)), plan.model)
    sent = plan.conditions["scaled"]
    assert (memory["planned_context"], memory["planned_output"]) == (sent["input_len"], sent["output_len"])
    assert plan.labels["acceptance"] == "natural"
    assert "speculation.force_accept_length" not in plan.settings["decode"]
    assert plan.client.workload["source"]["tokenizer"] == f"{plan.model['path']}/tokenizer.json"
    assert plan.client.workload["limits"]["accept_length"] is None
