"""Kernels alone: measured rows, then those that cannot be measured on the testbed, each with its reason."""

import json

from reports.material import collect
from reports.results import load_results
from reports.tables.micro import micro_table
from tests.support.result_tree import REAL, ResultTree


def test_a_kernel_that_cannot_be_timed_here_says_why_beside_those_that_were(tmp_path):
    tree = ResultTree(tmp_path, "h200x1", REAL)
    refused = {"status": "not_applicable", "reason": "needs moe_tables: none was measured"}
    rows = {
        "micro/moe_m1024": refused,
        "micro/kda_inputs_fused": {"status": "runnable"},
        "decode/triton_tile_32": refused,
    }
    tree.folder.mkdir(parents=True)
    (tree.folder / "rows.json").write_text(json.dumps({"rows": rows}))
    assert micro_table(collect(load_results(tree.folder))).is_empty
    tree.add("micro/kda_inputs_fused/kernel", metrics={"kernel_us": 500.0, "speedup_ratio": 1.5})
    timed, other = micro_table(collect(load_results(tree.folder))).frame.to_dict("records")
    assert (timed["row"], timed["speedup"], timed["verdict"]) == ("kda_inputs_fused", 1.5, "ok")
    assert (other["row"], other["verdict"], other["reason"]) == ("moe_m1024", "not applicable", refused["reason"])
