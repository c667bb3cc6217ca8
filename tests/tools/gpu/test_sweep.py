"""One call over all kernels: launch choices are set and put back, and the table says what is met."""

import importlib
from typing import Any

import pytest

from tools.gpu.micro.shapes import shapes
from tools.gpu.micro.table import document, targets
from tools.gpu.micro.variants import chosen, implementation, is_measured

pytest.importorskip("triton")


def test_choices_hold_while_a_variant_is_open() -> None:
    segment_scan = importlib.import_module("stack.kernels.kda_chunk.segment_scan")
    before = segment_scan.SCAN_COLUMNS
    with chosen("kda_chunk", "cuda_prepared@segment_scan.SCAN_COLUMNS=32,kv_tile=128") as keywords:
        assert segment_scan.SCAN_COLUMNS == 32 and keywords == {"kv_tile": 128}
    assert before == segment_scan.SCAN_COLUMNS


def test_every_variant_names_constants_that_exist() -> None:
    for shape in shapes():
        for variant in shape.variants:
            assert implementation(variant) in shape.impls
            if not is_measured(variant):
                continue
            with chosen(shape.op, variant):
                pass


def row(impl: str, us: float | None) -> dict[str, Any]:
    shape = {"op": "moe", "shape": "8 rows", "bytes": 1e6, "flop": 0.0, "floor_us": 2.0, "target_us": 10.0}
    return shape | {"impl": impl, "us": us, "anchor": ""}


@pytest.mark.parametrize(
    ("times", "verdict"), [([12.0, 9.0], "met"), ([12.0, 15.0], "missed by 20%"), ([None, None], "not measured")]
)
def test_a_target_is_held_against_the_best(times: list[float | None], verdict: str) -> None:
    (line,) = targets([row(f"form{i}", us) for i, us in enumerate(times)])
    assert line[-1] == verdict


def test_the_document_names_what_did_not_pass() -> None:
    failure = {"op": "moe", "impl": "form1", "reason": "8 rows: WRONG 1e-1"}
    text = document({"checks": [], "times": [row("form0", 4.0)], "failures": [failure]})
    assert "| moe | form0 | 8 rows | 4.0 |" in text and "| moe | form1 | 8 rows: WRONG 1e-1 |" in text
