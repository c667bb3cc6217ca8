"""A kernel timed alone is a row like any other: planned, refused with its reason, without a time when it is wrong."""

from pathlib import Path

import pytest

from tools.gpu.micro.shapes import shapes
from workflows.bench import BENCH_FILE
from workflows.catalog import Catalog, load_catalog
from workflows.measure import measure
from workflows.planner import plan_session
from workflows.resolution import resolve
from workloads.files import write_json

ROW = "micro/kda_inputs_fused"


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return load_catalog()


def test_every_timed_call_names_a_shape_and_two_implementations_of_the_bench(catalog: Catalog) -> None:
    known = {(shape.op, shape.label): (*shape.impls, *shape.variants) for shape in shapes()}
    for entry in catalog.rows.values():
        if bench := entry.row.bench:
            assert {bench.impl, bench.base} <= set(known[bench.op, bench.shape]), entry.name


def test_kernels_are_planned_on_a_gpu_and_refused_on_the_cpu(catalog: Catalog) -> None:
    assert resolve(catalog, catalog.row(ROW), "h200x1").status == "runnable"
    refused = resolve(catalog, catalog.row(ROW), "cpu")
    assert refused.status == "not_applicable" and "kernel times on a CPU say nothing" in refused.reason
    plan = plan_session(ROW, "kernel", testbed_id="h200x1")
    assert plan.processes == () and plan.client.gpus == (0,)
    assert "tools.gpu.micro" in plan.client.command


def test_the_row_of_tuned_tiles_runs_where_a_table_was_measured(catalog: Catalog) -> None:
    entry = catalog.row("micro/moe_m1024")
    assert resolve(catalog, entry, "h200x1").status == "runnable"
    assert "no tuned table has been measured yet" in resolve(catalog, entry, "h200x4").reason


def folder_with(tmp_path: Path, verdict: str) -> Path:
    plan = plan_session(ROW, "kernel", testbed_id="h200x1")
    bench = plan.client.workload["bench"]
    times = [{"impl": i, "shape": bench["shape"], "us": us, "floor_us": 100.0} for i, us in
             ((bench["impl"], 200.0), (bench["base"], 500.0))]  # fmt: skip
    checks = [{"impl": bench["impl"], "case": "c", "verdict": verdict, "detail": "1e-2"}]
    write_json(tmp_path / "plan.json", plan.to_json())
    write_json(tmp_path / "status.json", {"status": "ok", "kind": None, "reason": ""})
    write_json(tmp_path / BENCH_FILE, {"checks": checks, "times": times})
    return tmp_path


def test_a_kernel_has_its_time_and_what_it_saves(tmp_path: Path) -> None:
    body = measure(folder_with(tmp_path, "ok"))
    assert body["validity"]["verdict"] == "VALID"
    assert body["metrics"] == {"kernel_us": 200.0, "base_us": 500.0, "speedup_ratio": 2.5, "of_floor_ratio": 0.5}


def test_a_wrong_kernel_has_no_time(tmp_path: Path) -> None:
    body = measure(folder_with(tmp_path, "WRONG"))
    assert body["validity"]["verdict"] == "INVALID" and "metrics" not in body
    assert "1 of 1 checks against the reference failed; the first: cuda_long on c" in body["validity"]["reasons"][0]
