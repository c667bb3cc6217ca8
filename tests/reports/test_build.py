"""The whole build over small trees of results: what stands on the page is what the sessions say, and nothing else."""

import base64
import csv
import errno
import html
import io
import json
import os
import re
import shutil
from pathlib import Path

import pytest

from reports.build import main
from reports.claims import Cell
from reports.headline import headline
from reports.json_files import sealed
from reports.material import collect
from reports.results import load_results
from tests.support.chromium import CHROMIUM, look_at
from tests.support.result_tree import REAL, TINY, ResultTree

PHASES = {"draft": 9.0, "verify": 60.0, "accept": 1.0, "commit": 2.0}
NEVER = (771177.25, 883388.5, 994499.75)
"""Values that only invalid and failed sessions have."""


def _full_tree(root: Path) -> ResultTree:
    """A made-up machine on which decode comes out as published, and prefill half as fast as it should."""
    tree = ResultTree(root, "full", REAL)
    for index, base in enumerate((2782.0, 2790.0, 2775.0, 2786.0, 2779.0)):
        tree.add("decode/baseline/sp99_9", index, metrics={"output_tok_s": base, "tpot_mean_ms": 16.0 + index})
        best = {"output_tok_s": base * (4.31 + 0.01 * index), "tpot_mean_ms": 10.0, "accept_length": 7.0}
        name = "decode/dflash2_tuned_moe_dsa_partial/sp99_9"
        tree.add(name, index, metrics=best, prefix="kv_radix", running_limit=132, phases_ms=PHASES)
        tree.add("prefill/baseline/prefill_only", index, metrics={"input_tok_s": 23000.0 + index, "ttft_mean_s": 5.6})
        name = "prefill/fp8_comm_fusion_scheduling/prefill_only"
        tree.add(name, index, metrics={"input_tok_s": 24000.0 + index, "ttft_mean_s": 5.5})
        own = {"output_tok_s": 1.5 * base, "tpot_mean_ms": 100.5 + index}
        for name in ("fp8_kv_bf16_state", "one_slot_running_ring", "pool_auto"):
            tree.add(f"decode/{name}/sp99_9", index, metrics=own)
    reason = "changes nothing here: the testbed lacks context_parallel"
    here = {"prefill/cp_bcg": {"status": "not_applicable", "reason": reason}}
    (tree.folder / "rows.json").write_text(json.dumps({"schema": "rows/1", "rows": here}))
    tree.add("integrated/baseline/sp50", metrics={"output_tok_s": 2000.0, "ttft_mean_s": 2.5})
    tree.add("integrated/optimized/sp50", metrics={"output_tok_s": 4200.0, "ttft_mean_s": 4.6, "ttft_p99_s": 7.5})
    bad = {"output_tok_s": NEVER[0], "ttft_mean_s": NEVER[1]}
    reasons = ("errors: 3 of 8 <requests> failed",)
    tree.add("integrated/optimized/sp0", metrics=bad, verdict="INVALID", reasons=reasons)
    dead = {
        "status": "failed",
        "kind": "died",
        "reason": "d0 died with exit code 7",
        "log_tail": {"d0": ["last & words"]},
    }
    tree.add("decode/fp8_kv/sp99_9", metrics={"output_tok_s": NEVER[2], "tpot_mean_ms": NEVER[1]}, status=dead)
    return tree


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The folder of a page over the full tree."""
    tree = _full_tree(tmp_path_factory.mktemp("full"))
    out = tmp_path_factory.mktemp("out")
    assert main([str(tree.folder), "--out", str(out / "report.html")]) == 0
    return out


@pytest.fixture
def page(built):
    return (built / "report.html").read_text()


def rows(built: Path, table: str) -> dict[str, dict[str, str]]:
    with (built / "tables" / f"{table}.csv").open() as file:
        return {row.get("row") or row.get("id") or row["session"]: row for row in csv.DictReader(file)}


def text_of(page: str) -> str:
    return html.unescape(re.sub(r"<[^>]+>", " ", page))


def test_a_ratio_inside_its_band_is_reproduced_and_one_below_is_lower(built):
    claims = rows(built, "claims")
    assert claims["decode/dflash2_tuned_moe_dsa_partial/sp99_9:output_tok_s/baseline"]["verdict"] == "reproduced"
    assert claims["prefill/fp8_comm_fusion_scheduling/prefill_only:input_tok_s/baseline"]["verdict"] == "lower"
    assert claims["integrated/optimized/sp50:output_tok_s/baseline"]["verdict"] == "indicative"
    assert claims["integrated/optimized/sp93_75:output_tok_s/baseline"]["verdict"] == "not run"


def test_ladder_numbers_are_those_of_the_sessions(built):
    ladder = rows(built, "ladder_decode")
    last, base = ladder["dflash2_tuned_moe_dsa_partial"], ladder["baseline"]
    assert float(base["ours"]) == pytest.approx((2782.0 * 2790.0 * 2775.0 * 2786.0 * 2779.0) ** (1 / 5))
    assert float(last["ours_over_baseline"]) == pytest.approx((4.31 * 4.32 * 4.33 * 4.34 * 4.35) ** (1 / 5))
    assert float(last["ours_over_baseline_low"]) < 4.32 < float(last["ours_over_baseline_high"])
    assert (last["sessions"], last["published"]) == ("5", "12026.62")
    limits = ("ours_running_limit", "published_running_limit")
    assert [float(row[name]) for row in (last, base) for name in limits] == [132, 132, 56, 56]
    assert list(ladder)[:3] == ["baseline", "fp8_kv", "fp8_kv_mtp516"]


def test_the_first_screen_answers_the_question(page):
    first = text_of(page[: page.index("<main>")])
    assert "No: at least one headline ratio came out lower than published." in first
    for words in ("4.32x", "4.33x", "reproduced", "2.06x", "lower", "n=5"):
        assert words in first, words


def test_an_invalid_or_failed_session_is_a_reason_and_never_a_number(built, page):
    shown = [
        page,
        *(file.read_text() for folder in ("tables", "figures") for file in (built / folder).glob("*.[cs]*v*")),
    ]
    shown += [base64.b64decode(found).decode() for found in re.findall(r"base64,([A-Za-z0-9+/=]+)", page)]
    assert any("4,200" in text for text in shown) and any("4200" in text for text in shown)
    for value in NEVER:
        whole = re.compile(f"{int(value):,}|{int(value)}|{value:.4g}")
        assert not any(whole.search(text) for text in shown), value
    text = text_of(page)
    assert "errors: 3 of 8 <requests> failed" in text
    assert "d0 died with exit code 7" in text and "last & words" in text
    failures = rows(built, "failures")
    assert failures["integrated/optimized/sp0 s0"]["outcome"] == "invalid"
    assert failures["decode/fp8_kv/sp99_9 s0"]["outcome"] == "failed"


def test_every_figure_lies_beside_the_page_in_both_forms(built):
    names = {"topology", "prefix_sharing", "cycle", "tile_loop", "decode", "packet", "prefill", "integrated"}
    assert {file.stem for file in (built / "figures").glob("*.svg")} == names
    assert {file.stem for file in (built / "figures").glob("*.png")} == names
    assert all(file.stat().st_size > 5000 for file in (built / "figures").iterdir())


def test_figures_say_n_and_the_values_of_tables(built):
    decode = (built / "figures" / "decode.svg").read_text()
    assert "12,027 (4.32x)" in decode and "(4.33x) n=5" in decode and "not run" in decode
    assert "100.0 ms for 7.00 tokens, 40 steps" in (built / "figures" / "cycle.svg").read_text()
    assert "6 s" in (built / "figures" / "integrated.svg").read_text()
    assert "66 iterations" in (built / "figures" / "tile_loop.svg").read_text()


def test_memory_terms_and_bound_kernels_are_those_that_instances_told(built):
    with (built / "tables" / "memory_terms.csv").open() as file:
        terms = {row["cell"]: row for row in csv.DictReader(file)}
    row = terms["decode/baseline/sp99_9"]
    assert [float(row[name]) for name in ("target KV, MiB", "recurrent states, MiB", "sum, MiB", "budget, MiB")] == [
        32.0,
        16.0,
        58.0,
        64.0,
    ]
    with (built / "tables" / "kernels.csv").open() as file:
        moe = next(csv.DictReader(file))
    assert moe == {
        "op": "moe",
        "decode/baseline/sp99_9 p0": "torch_grouped",
        "decode/baseline/sp99_9 d0": "reference",
    }


def test_a_row_that_cannot_run_here_says_so_with_the_reason_and_one_that_was_not_run_does_not(built, page):
    ladder = rows(built, "ladder_prefill")
    assert ladder["cp_bcg"]["verdict"] == "not applicable"
    assert ladder["cp_bcg"]["reason"] == "changes nothing here: the testbed lacks context_parallel"
    assert ladder["exec_prep_moe"]["verdict"] == "not run"
    figure = (built / "figures" / "prefill.svg").read_text()
    assert ">not applicable<" in figure and ">not run<" in figure
    assert "cp_bcg: changes nothing here: the testbed lacks context_parallel" in figure
    claims = rows(built, "claims")
    assert {
        claims[name]["verdict"] for name in claims if name.startswith("prefill/cp_bcg/prefill_only:input_tok_s")
    } == {"not applicable"}


def test_what_gets_worse_stands_on_the_page(built):
    text = (built / "tables" / "worsened.csv").read_text()
    found = {(row["shared_prefix"], row["metric"]): row for row in csv.DictReader(io.StringIO(text))}
    assert found["0 %", "TTFT mean, s"]["published_optimized"] == "4"
    row = found["50 %", "TTFT mean, s"]
    assert [row[name] for name in ("published_baseline", "published_optimized")] == ["2.59", "4.72"]
    assert [row[name] for name in ("ours_baseline", "ours_optimized")] == ["2.5", "4.6"]
    assert found["50 %", "TTFT P99, s"]["published_optimized"] == "7.56"


def test_a_page_asks_for_nothing_and_carries_its_tables(built, page):
    places = re.findall(r"""(?:src|href|action|data|poster)=["']([^"']*)["']|url\(([^)]*)\)|@import""", page)
    assert {place[0] or place[1] for place in places if not (place[0] or place[1]).startswith(("#", "data:"))} == set()
    assert "<script" not in page
    linked = re.search(r'download="ladder_decode.csv" href="data:text/csv;charset=utf-8;base64,([^"]+)"', page)
    assert linked and base64.b64decode(linked[1]).decode() == (built / "tables" / "ladder_decode.csv").read_text()


def test_every_place_of_the_page_has_one_name(page):
    names = re.findall(r'\bid="([^"]+)"', page)
    assert [name for name in set(names) if names.count(name) > 1] == []
    assert set(re.findall(r'href="#([^"]+)"', page)) <= set(names)


def test_commands_are_shown_as_a_shell_takes_them(page):
    assert "{python} -m stack.server {dir}/d0.json --set 'a b=1'" in text_of(page)


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")
def test_a_browser_has_nothing_to_complain_about(built):
    seen = look_at(built / "report.html", (1280, 390))
    assert seen.problems == [] and seen.fetched == []
    assert all(content <= viewport for viewport, content in seen.widths.items()), seen.widths
    assert seen.scrolling[1280] == [], "no table is wider than a desktop"
    assert "headline ratio" in seen.text


def test_a_repeated_reason_stands_once_below_its_table(page):
    (shown,) = re.findall(r'<h3 id="claims".*?Download as CSV', page, re.DOTALL)
    notes = re.findall(r'<li id="claims_\d+">(.*?)</li>', shown)
    assert notes and len(set(notes)) == len(notes)
    assert set(re.findall(r'href="#claims_(\d+)"', shown)) == {str(n + 1) for n in range(len(notes))}


def test_one_session_is_enough_and_its_scale_is_said(tmp_path, capsys):
    tree = ResultTree(tmp_path, "cpu", TINY)
    tree.add("decode/baseline/sp99_9", metrics={"output_tok_s": 16.8, "tpot_mean_ms": 209.0})
    (tree.folder / "decode" / "fp8_kv" / "sp99_9" / "s0").mkdir(parents=True)
    shutil.copy(tree.folder / "decode/baseline/sp99_9/s0/plan.json", tree.folder / "decode/fp8_kv/sp99_9/s0/plan.json")
    assert main([str(tree.folder)]) == 0
    text = text_of((tree.folder / "report.html").read_text())
    assert "Not yet: no headline ratio has been measured." in text
    assert "Another scale (cpu-tiny): absolute values cannot be compared" in text
    assert "not comparable" in text and "planned; it has no status yet" in text
    assert "report " in capsys.readouterr().err


def test_indicative_ratios_are_never_called_an_answer(tmp_path):
    tree = ResultTree(tmp_path, "cpu", TINY)
    tree.add("decode/baseline/sp99_9", metrics={"output_tok_s": 10.0})
    tree.add("decode/dflash2_tuned_moe_dsa_partial/sp99_9", metrics={"output_tok_s": 43.2})
    material = collect(load_results(tree.folder))
    assert headline(material).answer.startswith("Not answered: this ran at another scale (cpu-tiny)")
    decode = headline(material).cards[1].held
    assert (decode.claim.published, decode.verdict.outcome) == (pytest.approx(4.32, abs=0.005), "indicative")


@pytest.mark.parametrize("broken", ["status.json", "metrics.json", "plan.json"])
def test_a_torn_file_makes_its_session_a_failed_one(tmp_path, broken):
    tree = ResultTree(tmp_path, "cpu", TINY)
    folder = tree.add("decode/baseline/sp99_9", metrics={"output_tok_s": NEVER[0]})
    (folder / broken).write_text('{"half')
    tree.add("decode/baseline/sp99_9", 1, metrics={"output_tok_s": 5.0})
    first, second = load_results(tree.folder).sessions
    assert (first.outcome, first.metrics, second.outcome) == ("failed", {}, "ok")
    assert first.reason == f"{broken} cannot be read; run this session again"


def test_a_number_that_was_changed_by_hand_is_never_shown(tmp_path):
    tree = ResultTree(tmp_path, "cpu", TINY)
    file = tree.add("decode/baseline/sp99_9", metrics={"output_tok_s": 5.25}) / "metrics.json"
    file.write_text(json.dumps(sealed(json.loads(file.read_text()))))
    assert load_results(tree.folder).sessions[0].metrics["output_tok_s"] == 5.25
    file.write_text(file.read_text().replace("5.25", "6.25"))
    (session,) = load_results(tree.folder).sessions
    assert (session.outcome, session.metrics) == ("failed", {})
    assert session.reason.startswith("metrics.json was changed after it was computed")


def test_a_folder_without_sessions_is_one_sentence(tmp_path, capsys):
    for folder, words in ((tmp_path / "none", "does not exist"), (tmp_path, "no session has ended")):
        assert main([str(folder)]) == 2
        lines = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("report ")]
        assert len(lines) == 1 and lines[0].startswith("error: ") and words in lines[0]
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_one_sentence_and_leaves_the_old_page(tmp_path, monkeypatch, capsys):
    tree = ResultTree(tmp_path, "cpu", TINY)
    tree.add("decode/baseline/sp99_9", metrics={"output_tok_s": 16.8})
    page = tree.folder / "report.html"
    page.write_text("old")

    def full(_path: Path, _content: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_bytes", full)
    assert main([str(tree.folder)]) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("error: ") and "No space left on device" in error and "free some space" in error
    assert page.read_text() == "old" and not [f for f in tree.folder.rglob(".*") if f.is_file()]


def test_one_value_never_mixes_two_states_of_the_code(tmp_path):
    tree = ResultTree(tmp_path, "small", TINY)
    cell = "decode/baseline/sp99_9"
    tree.add(cell, 0, metrics={"output_tok_s": 100.0}, status={"measured_code": "older"})
    for index, rate in ((1, 200.0), (2, 242.0)):
        tree.add(cell, index, metrics={"output_tok_s": rate})
    material = collect(load_results(tree.folder))
    ours = material.ours(Cell(*cell.split("/")), "output_tok_s")
    assert (ours.sessions, ours.value) == (2, pytest.approx(220.0))
    assert [session.name for session in material.results.superseded] == [f"{cell} s0"]
    assert any("older code" in note for note in headline(material).notes)


def test_a_headline_whose_sessions_are_invalid_says_so_and_names_the_first_reason(tmp_path):
    tree = ResultTree(tmp_path, "bad", REAL)
    rate = {"output_tok_s": NEVER[0]}
    reasons = ("errors: 3 of 8 requests failed", "cached: 0.2 is below 0.9")
    tree.add("integrated/optimized/sp0", metrics=rate, verdict="INVALID", reasons=reasons)
    tree.add("integrated/baseline/sp0", metrics={"output_tok_s": 2000.0})
    died = {"status": "failed", "kind": "died", "reason": "d0 died with exit code 7"}
    tree.add("integrated/baseline/sp50", metrics=None, status=died)
    tree.add("integrated/baseline/sp93_75", metrics={"ttft_mean_s": 1.0})
    assert main([str(tree.folder)]) == 0
    head = headline(collect(load_results(tree.folder)))
    verdicts = {card.title: (card.held.verdict.outcome, card.held.verdict.reason) for card in head.cards}
    assert verdicts["3P1D, 0 % shared"] == ("invalid", "integrated/optimized/sp0 s0: errors: 3 of 8 requests failed")
    assert verdicts["3P1D, 50 % shared"] == ("failed", "integrated/baseline/sp50 s0: d0 died with exit code 7")
    assert verdicts["3P1D, 93.75 %"] == ("no value", "integrated/baseline/sp93_75 s0: no output_tok_s")
    assert verdicts["Decode"][0] == "not run"
    assert head.answer.startswith("Not answered: what was run is invalid or failed")
    page = text_of((tree.folder / "report.html").read_text())
    first = page[: page.index("What gets worse")]
    assert "invalid integrated/ optimized/ sp0 s0: errors: 3 of 8 requests failed." in " ".join(first.split())
    assert first.count("not run") == 2 + 1, "prefill and decode, and their count in the sentence"
