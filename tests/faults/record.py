"""Play the table once and write what was seen: `python -m tests.faults.record OUT.md [--only TEXT] [--ci]`."""

import argparse
import datetime
import os
import platform
import sys
import tempfile
import time
import traceback
from pathlib import Path

from stack.models.tiny import write_tiny
from tests.faults.scenarios import Scenario, table
from tests.faults.stage import RECOVERY_LIMIT_S, SETTINGS, Result, Stage, problems
from tests.support.cluster import EXACT, Cluster
from tests.support.serving import Server


def main() -> int:
    """Exit code 0 when every row was passed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", default="", help="rows whose name holds this text")
    parser.add_argument("--ci", action="store_true", help="the reduced set")
    options = parser.parse_args()
    rows = [row for row in table() if options.only in str(row) and (row.ci or not options.ci)]
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="np1d-faults-") as folder:
        results = _play(rows, Path(folder))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(_page(results, time.monotonic() - start))
    return int(any(found for _, found in results))


def _play(rows: list[Scenario], folder: Path) -> list[tuple[Result, list[str]]]:
    model = folder / "model"
    write_tiny(model, dtype="float32")
    single = Server(model, EXACT, worker="stack.engine")
    cluster = Cluster(folder, model, 2, SETTINGS)
    stage = Stage(cluster)
    results = []
    try:
        stage.learn(single.wait_ready(180).url)
        single.stop()
        cluster.start_router()
        for row in rows:
            results.append(_one(stage, row))
            result, found = results[-1]
            print(
                f"{row} end {result.fault_to_end_s:.1f} recovery {result.recovery_s:.1f}", found or "passed", flush=True
            )
    finally:
        single.stop()
        stage.close()
        cluster.close()
    return results


def _one(stage: Stage, row: Scenario) -> tuple[Result, list[str]]:
    try:
        result = stage.play(row)
        return result, problems(result)
    except Exception as error:
        traceback.print_exc()
        for instance in stage.cluster.instances:
            if not instance.is_alive:
                instance.restart()
        if stage.cluster.router is not None and stage.cluster.router.poll() is not None:
            stage.cluster.start_router()
        return Result(row), [f"{type(error).__name__}: {error}"]


def _page(results: list[tuple[Result, list[str]]], duration_s: float) -> str:
    passed = sum(not found for _, found in results)
    settings = ", ".join(f"{name} {value}" for name, value in SETTINGS.items())
    lines = [
        "# Faults, played once",
        "",
        f"{passed} of {len(results)} scenarios passed on {datetime.date.today()}, in {duration_s / 60:.0f} minutes, on "
        f"{platform.machine()} with {os.cpu_count()} cores. Command: `python -m {' '.join(_command())}`.",
        "",
        "Two prefill instances, one decode instance (the tiny model in FP32) and the Rust router, all real",
        "processes; transfers by NIXL over UCX. Each scenario starts with empty caches, checks every request's greedy",
        "tokens against an undisturbed single instance, restarts what died on the same port, waits for an exact answer",
        f"from each prefill instance, directly and through the router (within {RECOVERY_LIMIT_S:g} s), and then for",
        "all memory to be free.",
        "",
        f"Settings: {settings}. The delay holds each write back, so that a fault can hit a transfer.",
        "",
        "*victim*: the request that is hit; *others*: requests beside it on the other prefill instance; *end*: from",
        "the fault to the end of all of them; *recovery*: from the healed process to exact answers everywhere.",
        "",
        "| scenario | victim | others | end, s | recovery, s | exit code | verdict |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for result, found in results:
        others = " ".join(result.others) or "-"
        code = "-" if result.exit_code is None else str(result.exit_code)
        verdict = "; ".join(found).replace("|", "/") or "passed"
        numbers = f"{result.fault_to_end_s:.1f} | {result.recovery_s:.1f}"
        lines.append(f"| {result.scenario} | {result.victim} | {others} | {numbers} | {code} | {verdict} |")
    return "\n".join(lines) + "\n"


def _command() -> list[str]:
    return ["tests.faults.record", *sys.argv[1:]]


if __name__ == "__main__":
    sys.exit(main())
