"""A plan is complete, scaled as its testbed says, and the same for the same meaning."""

import json
from pathlib import Path

import pytest

from stack.config import from_dict
from workflows.errors import CatalogError, NotApplicableError
from workflows.identity import canonical, measured_code
from workflows.plan import Plan, difference, read_plan
from workflows.planner import plan_session
from workflows.targets import Selection
from workloads.files import write_json
from workloads.spec import parse

CELLS = [
    ("prefill/baseline", "prefill_only"),
    ("decode/baseline", "sp99_9"),
    ("integrated/baseline", "sp0"),
    ("integrated/baseline", "sp50"),
    ("integrated/baseline", "sp93_75"),
]


def plan(row: str = "decode/baseline", workload: str = "sp99_9", **keywords: object) -> Plan:
    return plan_session(row, workload, **({"testbed_id": "cpu"} | keywords))  # type: ignore[arg-type]


@pytest.mark.parametrize(("row", "workload"), CELLS)
def test_every_part_of_a_plan_is_what_its_reader_takes(row: str, workload: str) -> None:
    made = plan(row, workload)
    parse(made.client.workload)
    for process in made.processes:
        for content in process.files.values():
            from_dict(content)


@pytest.mark.parametrize(("row", "workload"), CELLS)
def test_a_plan_survives_its_file(tmp_path: Path, row: str, workload: str) -> None:
    made = plan(row, workload)
    write_json(tmp_path / "plan.json", made.to_json())
    assert read_plan(tmp_path / "plan.json") == made


def test_nothing_of_this_machine_is_in_a_plan() -> None:
    text = canonical(plan().to_json())
    for mark in (str(Path.home()), str(Path.cwd()), "/tmp", "python3"):
        assert mark not in text


def test_lengths_are_scaled_and_the_shared_share_is_not() -> None:
    made = plan("integrated/baseline", "sp93_75")
    published, here = made.conditions["published"], made.conditions["scaled"]
    assert (published["input_len"], published["concurrency"]) == (65536, 140)
    assert here["input_len"] == 65536 // 128
    assert here["shared_ratio"] == published["shared_ratio"] == 0.9375
    assert made.labels["lengths"] == "scaled"


def test_questions_are_asked_once_a_pass_and_their_answers_are_the_models_own() -> None:
    made = plan("accuracy/gsm8k_optimized", "gsm8k_5shot")
    workload = parse(made.client.workload)
    assert workload.scoring is not None and workload.passes == 2
    assert not workload.load.handover and not workload.load.keep_full and workload.num_warmup == 0
    assert (made.labels["acceptance"], made.labels["weights"]) == ("natural", "random")
    assert "speculation.force_accept_length" not in made.settings["decode"], "a forced answer is not the model's"
    assert "noise" in made.left_out["trained_model"]
    (need,) = made.data
    assert need.path == workload.source.path and need.sha256 == workload.source.sha256


def test_the_second_variant_asks_the_examples_too() -> None:
    asked = [parse(plan("accuracy/gsm8k_baseline", w).client.workload) for w in ("gsm8k_5shot", "gsm8k_5shot_all")]
    assert [workload.source.skip_shots for workload in asked] == [True, False]
    published = [plan("accuracy/gsm8k_baseline", w).conditions["published"] for w in ("gsm8k_5shot", "gsm8k_5shot_all")]
    assert [conditions["questions"] for conditions in published] == [1314, 1319]


def test_questions_may_be_put_to_other_weights_than_the_testbeds() -> None:
    made = plan("accuracy/gsm8k_optimized", "mini_gsm")
    assert made.model["name"] == "tiny_trained" and made.labels["weights"] == "checkpoint"
    assert "trained_model" not in made.left_out and made.data == ()
    assert {p.files[f"{p.name}.json"]["model"]["path"] for p in made.processes if p.files} == {made.model["path"]}


def test_a_demo_is_short_and_says_so_and_a_named_row_is_not() -> None:
    config = {"testbed": "cpu", "engine": "default", "sessions": 1, "seed": 0, "on_failure": "record"}
    cell = {"suite": "decode", "row": "baseline", "workload": "sp99_9", "session": "0"}
    demo, named = (Selection(config | {"rows": rows}).plan(cell).client.workload for rows in ([], ["decode/baseline"]))
    assert (demo["passes"], demo["requests_per_pass"]) == (1, 10)
    assert (demo["load"]["cut_cooldown"], named["load"]["cut_cooldown"]) == (True, False)
    assert (named["passes"], named["requests_per_pass"]) == (2, 16)


def test_the_rust_router_starts_when_its_instances_are_ready() -> None:
    three = {process.name: process.after for process in plan("integrated/baseline", "sp0").processes}
    assert three.pop("router") == ("p0", "p1", "p2", "d0")
    assert set(three.values()) == {()}


def test_settings_counted_in_prompt_tokens_are_scaled_alike() -> None:
    made = plan()
    assert made.settings["prefill"]["scheduler.chunk_tokens"] == 8192 // 128


def test_the_memory_solver_is_told_what_to_expect() -> None:
    decode = plan().settings["decode"]
    assert decode["cache.expected_context"] == 512
    assert decode["cache.expected_shared"] == round(512 * 0.999)


def test_rows_of_a_ladder_get_the_same_bytes() -> None:
    budgets = {
        plan(f"decode/{row}").settings["decode"]["cache.budget_bytes"] for row in ("baseline", "fp8_kv", "pool_auto")
    }
    assert len(budgets) == 1


def test_three_prefill_instances_stand_behind_the_rust_router() -> None:
    made = plan("integrated/baseline", "sp0")
    assert [process.name for process in made.processes] == ["p0", "p1", "p2", "d0", "router"]
    router = made.processes[-1]
    assert router.ready.healthy_workers == 4
    assert "--disable-circuit-breaker" in router.command
    assert "{port:router_metrics}" in router.command
    assert router.command.count("--prefill") == 3


def test_the_isolated_ladders_use_the_mini_balancer_as_published() -> None:
    assert "--mini-lb" in plan().processes[-1].command


def test_every_instance_is_flushed() -> None:
    command = plan("integrated/baseline", "sp0").client.command
    assert command.count("--flush-url") == 4


def test_random_weights_make_acceptance_forced_and_labelled() -> None:
    made = plan("decode/fp8_kv_mtp516")
    assert made.labels["acceptance"] == "forced"
    assert made.labels["weights"] == "random"
    assert made.settings["decode"]["speculation.force_accept_length"] == 5.0
    low, high = made.client.workload["limits"]["accept_length"]
    assert low < 5.0 < high


def test_both_halves_know_the_drafter() -> None:
    made = plan("decode/dflash2_tuned_moe_dsa_partial")
    assert made.settings["prefill"]["speculation.method"] == made.settings["decode"]["speculation.method"] == "dflash2"
    assert made.settings["decode"]["speculation.draft_path"]


def test_one_gpu_is_one_colocated_instance_and_says_so() -> None:
    made = plan("prefill/baseline", "prefill_only", testbed_id="h200x1")
    assert [process.role for process in made.processes] == ["single"]
    assert made.labels["topology"] == made.labels["admission"] == "colocated"


def test_sessions_differ_in_their_prompts_and_not_in_their_key() -> None:
    first, second = plan(session=0), plan(session=1)
    assert first.key == second.key
    assert parse(first.client.workload).seed("pass", 0) != parse(second.client.workload).seed("pass", 0)


def test_a_caption_is_no_part_of_the_key() -> None:
    made = plan()
    assert made.model_copy(update={"question": "asked differently?", "expect": None}).key == made.key


def test_a_setting_is_part_of_the_key() -> None:
    assert plan("decode/fp8_kv").key.split("#")[1] != plan("decode/baseline").key.split("#")[1]


def test_a_difference_names_the_setting_and_both_values() -> None:
    lines = difference(plan("decode/baseline").to_json()["settings"], plan("decode/pool_auto").to_json()["settings"])
    assert 'decode.cache.pool_split: "solved" -> "auto"' in lines
    whole = difference(plan("decode/baseline").to_json(), plan("decode/pool_auto").to_json())
    assert 'processes.d0.files.d0.json.cache.pool_split: "solved" -> "auto"' in whole
    assert max(map(len, whole)) < 600, "a line is for a person"


def test_a_row_that_does_not_run_is_refused_with_its_reason() -> None:
    with pytest.raises(NotApplicableError, match="does not run on cpu: changes nothing here"):
        plan("prefill/cp_bcg", "prefill_only")


def test_traffic_for_certain_weights_runs_where_they_are_served_and_nowhere_else() -> None:
    assert plan("decode/baseline", "sp99_9_tp", testbed_id="h200x1").model["name"] == "quarter_tp"
    with pytest.raises(NotApplicableError, match="for the weights quarter_tp, which h200x2 does not serve"):
        plan("decode/baseline", "sp99_9_tp", testbed_id="h200x2")


def test_an_unknown_workload_names_the_ones_there_are() -> None:
    with pytest.raises(CatalogError, match="there are sp99_9"):
        plan(workload="sp0")


def test_a_broken_plan_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(json.dumps({"schema": "plan/1"}))
    with pytest.raises(Exception, match="is not a plan of this version"):
        read_plan(tmp_path / "plan.json")


def test_comments_and_docstrings_are_no_part_of_the_measured_code(tmp_path: Path) -> None:
    def digest_of(source: str) -> str:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        (folder / "stack").mkdir(parents=True)
        (folder / "stack" / "engine.py").write_text(source)
        return measured_code("stack", "cpu", folder)

    plain = digest_of("def f(x):\n    return x + 1\n")
    assert digest_of('"""What."""\n\n# why\ndef f(x):\n    """How."""\n    return x + 1\n') == plain
    assert digest_of("def f(x):\n    return x + 2\n") != plain


def test_a_gpu_kernel_is_no_part_of_what_the_cpu_measures(tmp_path: Path) -> None:
    folder = tmp_path / "stack" / "kernels" / "moe"
    folder.mkdir(parents=True)
    (folder / "triton_grouped.py").write_text("TILE = 64\n")
    root = tmp_path
    cpu, cuda = measured_code("stack", "cpu", root), measured_code("stack", "cuda", root)
    other = tmp_path / "other"
    (other / "stack" / "kernels" / "moe").mkdir(parents=True)
    (other / "stack" / "kernels" / "moe" / "triton_grouped.py").write_text("TILE = 128\n")
    assert measured_code("stack", "cpu", other) == cpu
    assert measured_code("stack", "cuda", other) != cuda
