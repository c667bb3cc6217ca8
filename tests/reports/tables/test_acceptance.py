"""Acceptance by prompt length comes from requests, measured ones of valid sessions alone, and keeps its label."""

import pytest

from reports.material import collect
from reports.results import load_results
from reports.tables.acceptance import acceptance_by_context
from tests.support.record_rows import chunk_rows, request_row
from tests.support.result_tree import REAL, TINY, ResultTree
from workloads.records import write_records

CHUNKS = [(1.0, 1), (2.0, 12)]


def _requests(*rows):
    return [
        request_row(i, phase, 0.0, CHUNKS, input_tokens=length, num_verify=verifies, output_tokens=13)
        for i, (phase, length, verifies) in enumerate(rows)
    ]


def _write(folder, requests):
    write_records(folder, requests, [row for r in requests for row in chunk_rows(r.request_index, r.phase, CHUNKS)])


def test_tokens_a_verify_are_grouped_by_prompt_length(tmp_path):
    tree = ResultTree(tmp_path, "full", REAL)
    asked = _requests(("warmup", 64, 1), ("measured", 64, 3), ("measured", 64, 6), ("measured", 2048, 12))
    _write(tree.add("drafters/mtp718/text_4k", metrics={"output_tok_s": 1.0}), asked)
    _write(tree.add("drafters/mtp718/text_64k", metrics={"output_tok_s": 1.0}, verdict="INVALID"), asked)
    short, long = acceptance_by_context(collect(load_results(tree.folder))).frame.to_dict("records")
    assert (short["prompt_tokens"], short["requests"], short["verifies"]) == (64, 2, 9)
    assert short["tokens_a_verify"] == pytest.approx(24 / 9) and short["quartiles"] == [2.5, 3.5]
    assert (long["prompt_tokens"], long["tokens_a_verify"], long["steps_a_token"]) == (2048, 1.0, 1.0)
    assert short["acceptance"] == "natural"


def test_forced_acceptance_is_named(tmp_path):
    tree = ResultTree(tmp_path, "cpu", TINY)
    _write(tree.add("drafters/mtp718/sp99_9", metrics={"output_tok_s": 1.0}), _requests(("measured", 512, 4)))
    (row,) = acceptance_by_context(collect(load_results(tree.folder))).frame.to_dict("records")
    assert (row["acceptance"], row["tokens_a_verify"]) == ("forced", 3.0)


def test_without_speculation_the_table_says_so(tmp_path):
    tree = ResultTree(tmp_path, "cpu", TINY | {"acceptance": "none"})
    _write(tree.add("decode/baseline/sp99_9", metrics={"output_tok_s": 1.0}), _requests(("measured", 512, 0)))
    table = acceptance_by_context(collect(load_results(tree.folder)))
    assert table.is_empty and "speculated" in table.empty
