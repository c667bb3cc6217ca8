"""Under which name a row's settings are measured on a testbed."""

import pytest

from workflows.catalog import load_catalog
from workflows.planner import plan_session
from workflows.resolution import measured_as


@pytest.mark.parametrize(
    ("row", "testbed", "name"),
    [
        ("prefill/chunks32k", "cpu", "prefill/chunks32k_async_tp"),
        ("prefill/fp8_comm_fusion_scheduling", "cpu", "prefill/fp8_comm_fusion_scheduling"),
        ("decode/fp8_kv", "cpu", "decode/fp8_kv"),
    ],
)
def test_a_row_that_repeats_an_earlier_one_goes_by_its_name(row: str, testbed: str, name: str) -> None:
    catalog = load_catalog()
    assert measured_as(catalog, catalog.row(row), testbed) == name


def test_a_plan_of_two_halves_names_the_runnable_rows_that_measure_each_alone() -> None:
    alone = plan_session("integrated/optimized", "sp50", testbed_id="cpu").measured_alone
    assert alone == {
        "prefill": "prefill/fp8_comm_fusion_scheduling",
        "decode": "decode/dflash2_tuned_moe_dsa_partial",
    }
    assert plan_session("decode/fp8_kv", "sp99_9", testbed_id="cpu").measured_alone == {}
