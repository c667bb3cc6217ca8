"""A kernel timed alone as a session: no server and no load, one process that checks the kernel and times it.

The same plan, attempt, validity and report as every other row; `tools.gpu.micro` does the work on a GPU and leaves
`micro.json`. A kernel that does not equal its reference has no time.
"""

from pathlib import Path
from typing import Any

from workflows.catalog import Catalog
from workflows.identity import MEASURE_VERSION
from workflows.plan import Cell, ClientPlan, Limits, Plan
from workflows.resolution import Resolution
from workloads.files import read_json
from workloads.metrics import METRICS_SCHEMA

BENCH_FILE = "micro.json"
WORKLOAD = "kernel"


def plan_bench(catalog: Catalog, resolution: Resolution, session: int) -> Plan:
    """The plan that times one row's kernel and the one it is held against."""
    entry, testbed = resolution.entry, catalog.testbed(resolution.testbed_id)
    bench = entry.row.bench
    assert bench is not None, "a row without a timed call is not runnable"
    command = (
        "{python}", "-m", "tools.gpu.micro", "--only", bench.op, "--shape", bench.shape,
        "--impl", f"{bench.impl},{bench.base}", "--keep-going", "--out", f"{{dir}}/{BENCH_FILE}",
    )  # fmt: skip
    return Plan(
        cell=Cell(
            testbed=resolution.testbed_id, suite=entry.suite_id, row=entry.row.id, workload=WORKLOAD, session=session,
            engine=resolution.engine,
        ),
        question=entry.row.question,
        metric=entry.suite.metric,
        expect=entry.row.expect.model_dump() if entry.row.expect else None,
        published=entry.row.published,
        measure_version=MEASURE_VERSION,
        settings={},
        parts=resolution.parts,
        left_out=resolution.left_out,
        labels={"weights": "random", "acceptance": "none", "admission": "none", "platform": testbed.platform,
                **testbed.labels},
        conditions={},
        model={},
        processes=(),
        client=ClientPlan(
            command=command, url_port="", workload={"identity": {}, "bench": bench.model_dump()}, gpus=(0,)
        ),
        limits=Limits(
            ready_timeout_s=testbed.session.ready_timeout_s, deadline_s=testbed.session.deadline_s,
            port_base=testbed.session.port_base, needed_memory_gib=testbed.session.needed_memory_gib,
        ),
    )  # fmt: skip


def is_bench(plan: Plan) -> bool:
    """Whether a plan times a kernel alone."""
    return "bench" in plan.client.workload


def bench_metrics(folder: Path, plan: Plan) -> dict[str, Any]:
    """metrics.json of such a session, without the facts of its plan."""
    bench = plan.client.workload["bench"]
    try:
        report = read_json(folder / BENCH_FILE)
    except (OSError, ValueError) as error:
        report = {"checks": [], "times": [], "error": f"{BENCH_FILE} cannot be read: {error}"}
    impls = (bench["impl"], bench["base"])
    times = {row["impl"]: row for row in report["times"] if row["shape"] == bench["shape"] and row["impl"] in impls}
    wrong = [row for row in report["checks"] if row["impl"] in impls and row["verdict"] not in ("ok", "missing")]
    rules = [_timed(times, impls, report), _correct(wrong, len(report["checks"]))]
    reasons = [f"{rule['rule']}: {rule['reason']}" for rule in rules if rule["verdict"] == "fail"]
    return {
        "schema": METRICS_SCHEMA,
        "validity": {"verdict": "INVALID" if reasons else "VALID", "reasons": reasons, "rules": rules, "warnings": []},
        "passes": [],
        "labels": plan.labels,
        "metrics_missing": {},
        **({"diagnostics": {}} if reasons else {"metrics": _values(times[bench["impl"]], times[bench["base"]])}),
    }


def _values(row: dict[str, Any], base: dict[str, Any]) -> dict[str, float]:
    return {
        "kernel_us": row["us"],
        "base_us": base["us"],
        "speedup_ratio": base["us"] / row["us"],
        "of_floor_ratio": row["floor_us"] / row["us"],
    }


def _timed(times: dict[str, Any], impls: tuple[str, str], report: dict[str, Any]) -> dict[str, Any]:
    missing = [impl for impl in impls if not times.get(impl, {}).get("us")]
    why = "; ".join(times[impl].get("error", "") for impl in missing if impl in times) or report.get("error", "")
    reason = f"{' and '.join(missing)} left no time{': ' + why if why else ''}" if missing else ""
    return _rule("timed", len(impls) - len(missing), len(impls), reason)


def _correct(wrong: list[dict[str, Any]], num_checks: int) -> dict[str, Any]:
    first = f"; the first: {wrong[0]['impl']} on {wrong[0]['case']}: {wrong[0]['detail']}" if wrong else ""
    reason = f"{len(wrong)} of {num_checks} checks against the reference failed{first}" if wrong else ""
    return _rule("correct", len(wrong), 0, reason or ("" if num_checks else "no check against the reference ran"))


def _rule(name: str, value: int, limit: int, reason: str) -> dict[str, Any]:
    verdict = "fail" if reason else "pass"
    return {"rule": name, "verdict": verdict, "value": value, "limit": limit, "source": "bench", "reason": reason}
