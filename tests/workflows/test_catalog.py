"""Rows are inherited and checked as a whole; every mistake is refused with the line that makes it."""

import dataclasses
import shutil
from pathlib import Path

import pytest

from workflows.catalog import Catalog, load_catalog
from workflows.errors import CatalogError
from workflows.resolution import resolve
from workflows.schema import CONFIG_FOLDER, FILES, schema_text

PUBLISHED_ROWS = {
    "prefill": ["baseline", "cp_bcg", "exec_prep_moe", "chunks32k_async_tp", "deepgemm_kda_qkv_pack",
                "fp8_comm_fusion_scheduling"],
    "decode": ["baseline", "fp8_kv", "fp8_kv_mtp516", "plus_replayssm_bf16_state", "plus_kv_only_decode_radix",
               "dflash2_tuned_moe_dsa_partial"],
    "integrated": ["baseline", "optimized"],
    "drafters": ["mtp718", "dflash2_block8"],
}  # fmt: skip


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return load_catalog()


def changed(tmp_path: Path, old: str, new: str, file: str = "ladders.yaml") -> Path:
    """The configuration folder with one text replaced."""
    folder = tmp_path / "config"
    shutil.copytree(CONFIG_FOLDER, folder)
    text = (folder / file).read_text()
    assert text.count(old) >= 1
    (folder / file).write_text(text.replace(old, new, 1))
    return folder


def refusal(folder: Path) -> str:
    with pytest.raises(CatalogError) as caught:
        load_catalog(folder)
    return str(caught.value)


def line_of(folder: Path, text: str, file: str = "ladders.yaml") -> int:
    return next(i for i, line in enumerate((folder / file).read_text().splitlines(), 1) if text in line)


@pytest.mark.parametrize("suite", PUBLISHED_ROWS)
def test_every_published_row_is_there_in_its_order(catalog: Catalog, suite: str) -> None:
    rows = [row.id for row in catalog.suites[suite].rows if row.published]
    assert rows == PUBLISHED_ROWS[suite]


def test_a_row_that_is_an_earlier_row_under_another_name_does_not_run(catalog: Catalog) -> None:
    twin = resolve(catalog, catalog.row("prefill/chunks32k"), "cpu")
    assert (twin.status, twin.reason) == ("not_applicable", "the same as prefill/chunks32k_async_tp here")
    assert resolve(catalog, catalog.row("prefill/chunks32k"), "h200x1").status == "runnable"


def test_the_prefill_baseline_is_as_fast_as_its_settings_allow(catalog: Catalog) -> None:
    assert all(catalog.settings(f"prefill/{row}", "prefill")["scheduler.overlap"] for row in PUBLISHED_ROWS["prefill"])
    tuned = resolve(catalog, catalog.row("prefill/exec_prep_moe"), "cpu")
    assert tuned.reason == "changes nothing here: the testbed lacks moe_prefill_tables, swiglu_quant_triton"


def test_a_row_is_found_by_its_published_name_too(catalog: Catalog) -> None:
    assert catalog.row("decode/capacity_adjusted_baseline").name == "decode/baseline"


def test_every_row_asks_a_question_and_has_a_column_or_a_reason_for_both_engines(catalog: Catalog) -> None:
    for entry in catalog.rows.values():
        assert entry.row.question.rstrip().endswith((".", "?"))
        column = entry.row.sglang
        assert column.none or column.launch or column.flags or column.env or entry.row.base, entry.name


def test_each_half_of_an_integrated_row_comes_from_its_own_ladder(catalog: Catalog) -> None:
    both_ends = {"cache.index_layout": "per_token"}  # pages travel: their form is the same on both instances
    prefill = catalog.settings("prefill/baseline", "prefill") | both_ends
    assert catalog.settings("integrated/baseline", "prefill") == prefill
    assert catalog.settings("integrated/baseline", "decode") == catalog.settings("decode/baseline", "decode")


def test_a_leave_one_out_variant_differs_from_the_full_row_in_that_step_alone(catalog: Catalog) -> None:
    full = catalog.settings("decode/dflash2_tuned_moe_dsa_partial", "decode")
    without = catalog.settings("decode/without_plus_kv_only_decode_radix", "decode")
    differing = {path for path in full if full[path] != without.get(path)}
    assert differing == {"cache.prefix", "scheduler.extra_inflight"}
    assert (without["cache.prefix"], without["scheduler.extra_inflight"]) == ("none", 0)


def test_a_step_that_was_changed_again_later_has_no_variant(catalog: Catalog) -> None:
    assert "decode/without_fp8_kv" in catalog.rows
    assert "decode/without_dflash2_tuned_moe_dsa_partial" not in catalog.rows


def test_running_limits_follow_from_bytes_and_are_never_typed(catalog: Catalog) -> None:
    for name in catalog.rows:
        for half in ("prefill", "decode"):
            assert "scheduler.max_running" not in catalog.settings(name, half)


def test_no_row_sets_its_own_byte_budget(catalog: Catalog) -> None:
    for name in catalog.rows:
        assert "cache.budget_bytes" not in catalog.settings(name, "decode")


def test_an_unknown_setting_is_refused_with_its_line_and_the_nearest_name(tmp_path: Path) -> None:
    folder = changed(tmp_path, "set: {decode: {cache.pool_split: auto}}", "set: {decode: {cache.pool_splt: auto}}")
    sentence = refusal(folder)
    assert sentence.startswith(f"ladders.yaml:{line_of(folder, 'cache.pool_splt')}: ")
    assert "did you mean 'cache.pool_split'?" in sentence


def test_a_value_of_the_wrong_kind_is_refused_with_its_line(tmp_path: Path) -> None:
    folder = changed(tmp_path, "cache.pool_split: auto}", "cache.pool_split: sometimes}")
    assert "must be one of solved, auto, not 'sometimes'" in refusal(folder)


def test_rows_that_go_in_a_circle_are_refused(tmp_path: Path) -> None:
    after = "\n        set: {decode: {cache.pool"
    folder = changed(tmp_path, f"base: decode/baseline{after}", f"base: decode/pool_auto{after}")
    assert "rows go in a circle: decode/pool_auto -> decode/pool_auto" in refusal(folder)


def test_a_row_that_stands_twice_is_refused_with_both_lines(tmp_path: Path) -> None:
    folder = changed(tmp_path, "- id: pool_auto", "- id: baseline")
    sentence = refusal(folder)
    assert "row decode/baseline stands twice, first at ladders.yaml:" in sentence
    assert sentence.startswith(f"ladders.yaml:{line_of(folder, 'question: What was lost before pages') - 1}")


def test_a_row_that_changes_nothing_is_refused(tmp_path: Path) -> None:
    folder = changed(tmp_path, "set: {decode: {cache.pool_split: auto}}", "set: {decode: {cache.pool_split: solved}}")
    assert "row decode/pool_auto changes nothing of its base" in refusal(folder)


def test_a_row_that_is_another_one_under_a_new_name_is_refused(tmp_path: Path) -> None:
    twin = """- id: pool_auto_again
        question: Is this the same row under another name?
        base: decode/baseline
        set: {decode: {cache.pool_split: auto}}
        sglang: {none: "the published engine's own split is not printed as a launch"}
      - id: fp8_kv
"""
    folder = changed(tmp_path, "- id: fp8_kv\n", twin)
    assert "row decode/pool_auto_again is the same as decode/pool_auto" in refusal(folder)


def test_an_unknown_metric_is_refused_with_the_nearest(tmp_path: Path) -> None:
    folder = changed(tmp_path, "expect: {metric: output_tok_s,", "expect: {metric: outpt_tok_s,")
    assert "there is no metric outpt_tok_s; did you mean output_tok_s" in refusal(folder)


def test_a_row_without_a_column_for_the_published_engine_is_refused(tmp_path: Path) -> None:
    column = """        sglang: {none: "the published engine's own split is not printed as a launch"}\n"""
    sentence = refusal(changed(tmp_path, column, ""))
    assert sentence.startswith("ladders.yaml:") and sentence.endswith("sglang: Field required")


def test_an_unknown_key_is_refused_with_its_line(tmp_path: Path) -> None:
    folder = changed(tmp_path, "published: capacity_adjusted_baseline", "publishd: capacity_adjusted_baseline")
    sentence = refusal(folder)
    assert sentence.startswith(f"ladders.yaml:{line_of(folder, 'publishd')}: unknown key")
    assert "did you mean published" in sentence


def test_a_key_given_twice_is_refused(tmp_path: Path) -> None:
    folder = changed(tmp_path, "published: capacity_adjusted_baseline", "id: again")
    assert "'id' is given twice" in refusal(folder)


def test_a_missing_base_is_refused_with_the_nearest_row(tmp_path: Path) -> None:
    folder = changed(tmp_path, "base: decode/fp8_kv_mtp516", "base: decode/fp8_kv_mtp561")
    assert "there is no row decode/fp8_kv_mtp561; did you mean decode/fp8_kv_mtp516" in refusal(folder)


def test_a_typed_running_limit_is_refused_unless_it_has_a_reason(tmp_path: Path) -> None:
    typed = "set: {decode: {cache.pool_split: auto, scheduler.max_running: 56}}"
    folder = changed(tmp_path, "set: {decode: {cache.pool_split: auto}}", typed)
    assert "scheduler.max_running follows from the memory budget" in refusal(folder)
    with_reason = typed + "\n        fixes_running: the cost of a step at equal concurrency"
    text = (folder / "ladders.yaml").read_text()
    (folder / "ladders.yaml").write_text(text.replace(typed, with_reason))
    load_catalog.cache_clear()
    load_catalog(folder)


def test_a_speculative_row_without_its_acceptance_length_is_refused(tmp_path: Path) -> None:
    folder = changed(tmp_path, "        accept_length: 5.0  # assumed: not published for five steps\n", "")
    assert "speculates; give its accept_length" in refusal(folder)


def test_an_unknown_mechanism_is_refused(tmp_path: Path) -> None:
    folder = changed(tmp_path, "needs: [mtp, snapshot_commit]", "needs: [mpt, snapshot_commit]")
    assert "nothing is called mpt; did you mean mtp" in refusal(folder)


def test_a_second_gated_metric_is_refused_rather_than_one_of_them_dropped(tmp_path: Path) -> None:
    first = "      input_tok_s: {direction: higher, max_regression: 0.03, max_noise: 0.02}\n"
    folder = changed(tmp_path, first, first + first.replace("input", "output"), "config.yaml")
    assert "at most 1 item" in refusal(folder)


def test_broken_yaml_is_one_sentence_with_its_line(tmp_path: Path) -> None:
    folder = changed(tmp_path, "suites:\n", "suites: [\n")
    assert refusal(folder).startswith("ladders.yaml:")


def test_the_schema_files_are_those_of_the_models() -> None:
    for name, model in FILES.items():
        assert (CONFIG_FOLDER / "schemas" / f"{name}.schema.json").read_text() == schema_text(model)


def test_a_row_whose_mechanism_is_missing_says_which_file(tmp_path: Path) -> None:
    folder = changed(tmp_path, "stack/speculation/mtp.py", "stack/speculation/not_there.py", "mechanisms.yaml")
    catalog = load_catalog(folder)
    resolution = resolve(catalog, catalog.row("decode/fp8_kv_mtp516"), "cpu")
    assert resolution.status == "not_built"
    assert resolution.reason == "not built yet: mtp (stack/speculation/not_there.py is missing)"


def test_a_mechanism_has_files_or_the_reason_why_it_has_none(tmp_path: Path, catalog: Catalog) -> None:
    known = catalog.testbeds["h200x4"]
    silent = known.model_copy(update={"lacks": {k: why for k, why in known.lacks.items() if k != "prefill_graphs"}})
    other = dataclasses.replace(catalog, testbeds={**catalog.testbeds, "h200x4": silent})
    reason = resolve(other, catalog.row("prefill/exec_prep_moe"), "h200x4").reason
    assert reason == "not built yet: prefill_graphs (our engine runs prompt passes eagerly)"
    folder = changed(tmp_path, "files: [stack/speculation/mtp.py]", "what_else: no", "mechanisms.yaml")
    assert "unknown key mtp.what_else" in refusal(folder)
    folder = changed(tmp_path / "b", "files: [stack/speculation/mtp.py]", "not_built: ''", "mechanisms.yaml")
    assert "give either its files or" in refusal(folder)


def test_our_engine_is_refused_where_an_instance_has_several_gpus(catalog: Catalog) -> None:
    refused = resolve(catalog, catalog.row("decode/baseline"), "h200x8", "stack")
    assert refused.reason == "an instance of our engine has one GPU, and this testbed's have 4"


def test_a_row_that_sets_the_tile_names_the_kernel_that_reads_it(catalog: Catalog) -> None:
    for testbed in catalog.testbeds:
        for entry in catalog.rows.values():
            resolution = resolve(catalog, entry, testbed, "stack")
            decode = resolution.settings["decode"]
            if resolution.status == "runnable" and decode.get("kernels.kv_tile") == 128:
                assert decode["kernels.sparse_mla"] == "triton_partial", f"{entry.name} on {testbed}"
    assert resolve(catalog, catalog.row("decode/triton_tile_128"), "h200x1").status == "runnable"
    assert "a GPU kernel's" in resolve(catalog, catalog.row("decode/triton_tile_128"), "cpu").reason


def test_what_a_testbed_lacks_is_left_out_and_said(catalog: Catalog) -> None:
    resolution = resolve(catalog, catalog.row("prefill/chunks32k_async_tp"), "cpu")
    assert resolution.status == "runnable"
    assert "async_tp" in resolution.left_out
    assert not any(path.startswith("kernels.moe") for path in resolution.settings["prefill"])


def test_a_row_that_would_measure_its_base_is_not_applicable(catalog: Catalog) -> None:
    resolution = resolve(catalog, catalog.row("prefill/deepgemm_kda_qkv_pack"), "cpu")
    assert (resolution.status, resolution.reason) == (
        "not_applicable",
        "changes nothing here: the testbed lacks deep_gemm, kda_qkv_pack",
    )


@pytest.mark.parametrize("testbed", ["cpu", "h200x1", "h200x2", "h200x4", "h200x8", "h200x16", "ascend_a3"])
def test_every_row_has_a_verdict_on_every_testbed(catalog: Catalog, testbed: str) -> None:
    for entry in catalog.rows.values():
        resolution = resolve(catalog, entry, testbed)
        assert resolution.status == "runnable" or resolution.reason


def test_three_prefill_instances_do_not_fit_two_gpus_unless_the_testbed_says_how_many_do(catalog: Catalog) -> None:
    entry = catalog.row("integrated/baseline")
    assert resolve(catalog, entry, "h200x2").status == "runnable"
    small = catalog.testbeds["h200x2"].model_copy(update={"prefill_instances": {}})
    other = dataclasses.replace(catalog, testbeds={**catalog.testbeds, "h200x2": small})
    assert resolve(other, entry, "h200x2").reason == "needs 4 instances and this testbed holds 2"
