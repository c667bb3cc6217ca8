"""Traces of steps beside what the report prints of a verify, and beside another engine's prompt pass."""

import json

import pytest

from reports.material import collect
from reports.results import load_results
from reports.tables.regions import chunk_regions, regions_table, verify_shares
from tests.support.result_tree import TINY, ResultTree

VERIFY = {
    "_beside": 20.0,
    "moe_combine": 3.0,
    "_fused": 2.0,
    "sparse_mla_fp8": 4.0,
    "top_pools": 6.0,
    "mhc_ring_1": 15.0,
}


@pytest.fixture
def material(tmp_path):
    tree = ResultTree(tmp_path, "h200x1", TINY)
    tree.add("decode/baseline/sp99_9", metrics={"output_tok_s": 1.0})
    kernels = {name: {"ms": ms, "launches": 1} for name, ms in VERIFY.items()}
    decode = {"steps": 3, "device_ms": 90.0, "covered": 0.5, "kernels": kernels}
    prefill = {"steps": 3, "device_ms": 640.0, "covered": 0.99, "kernels": {"sparse_mla_fp8": {"ms": 88.0}}}
    body = {"schema": "kernels/1", "profile": {"decode": decode, "prefill": prefill}, "impls": {}}
    (tree.folder / "decode" / "baseline" / "sp99_9" / "kernels.json").write_text(json.dumps(body))
    return collect(load_results(tree.folder))


def test_shares_of_a_verify_stand_beside_the_published_ones(material):
    found = verify_shares(material).frame
    assert list(found["published_pct"]) == [43, 80, 58.6]
    assert list(found["ours_pct"]) == pytest.approx([50.0, 80.0, 40.0])


def test_a_prompt_pass_stands_beside_the_other_engines_and_both_add_up(material):
    rows = {row["region"]: row for row in chunk_regions(material).frame.to_dict("records")}
    assert (rows["sparse attention"]["ours_ms"], rows["sparse attention"]["peer_ms"]) == (88.0, 276)
    whole = rows.pop("the whole pass")
    assert (whole["ours_ms"], whole["peer_ms"]) == (640.0, 937)
    assert sum(row["peer_ms"] or 0 for row in rows.values() if row["peer_ms"] == row["peer_ms"]) == 937
    assert set(regions_table(material).frame["covered_pct"]) == {50.0, 99.0}
