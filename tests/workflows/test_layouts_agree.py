"""Instances that exchange pages and states lay them out alike, in every row that runs here."""

from stack.config import from_dict
from workflows.catalog import load_catalog
from workflows.memory import configuration_of
from workflows.planner import plan_session
from workflows.resolution import resolve


def test_the_instances_of_every_row_agree_on_what_makes_a_page_and_a_state() -> None:
    catalog, agreed = load_catalog(), 0
    fields = ("page_size", "kv_dtype", "index_dtype", "index_layout", "state_dtype", "conv_dtype", "draft_kv")
    for entry in catalog.rows.values():
        if entry.suite.kind == "micro" or resolve(catalog, entry, "cpu").status != "runnable":
            continue
        plan = plan_session(entry.name, entry.workloads[0], testbed_id="cpu")
        trees = [from_dict(configuration_of(process)) for process in plan.processes if process.role != "router"]
        laid_out = {tuple(getattr(tree.cache, name) for name in fields) for tree in trees}
        assert len(laid_out) == 1, f"{entry.name}: {laid_out}"
        agreed += len(trees) > 1
    assert agreed > 10
