"""`np1d plan --memory`: what rows hold at each operating point, and whether memory or the client limits a batch.

Knows how plans are made and how tables are printed; the numbers are the engine's. A row or an operating point that
cannot be planned stands below the table with its reason, and does not keep the others from being shown.
"""

import dataclasses
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table

from workflows.catalog import Catalog, CatalogRow, nearest
from workflows.errors import CatalogError, WorkflowError
from workflows.memory import PUBLISHED_ENGINE, Memory, configuration_of, generating_instance, memory_plan, memory_text
from workflows.plan import Plan
from workflows.planner import plan_session
from workflows.resolution import Resolution, resolve

LEFT = ("row", "workload", "binds")
COLUMNS = (
    *LEFT[:2],
    "tokens",
    "pages",
    "slots",
    "rings",
    "in flight",
    "by pages",
    "by slots",
    "limit",
    "client",
    "binds",
)
LEGEND = (
    "All numbers are of the instance that generates; its caches may take {budget}.",
    "pages, slots: number x size of one; each: slots that a running request holds. rings: replay inputs and snapshots.",
    "in flight: requests whose cache is arriving, beside those that run.",
    "by pages, by slots: running requests of these tokens that each has room for. limit: the most that run at a time.",
    "client: requests that the load keeps open. binds: memory where they are more than the limit, else the client.",
    "One row alone is printed with every term in bytes, its other instances included.",
)
WIDE = 200
"""Columns of the table on any terminal: a number cut short says less than a line that wraps."""


@dataclasses.dataclass(frozen=True, slots=True)
class Question:
    """What the user asked about."""

    name: str
    """A row or a suite."""
    workload: str
    """One workload, or empty for all."""
    testbed: str
    engine: str


@dataclasses.dataclass(frozen=True, slots=True)
class Point:
    """One operating point: a row under one workload, and what the instance that generates holds."""

    plan: Plan
    memory: Memory

    @property
    def concurrency(self) -> int:
        """Requests that the client keeps open."""
        return int(self.plan.conditions["scaled"]["concurrency"])

    @property
    def binds(self) -> str:
        """What keeps more requests from running: `memory` where the client asks for more than fits, else `client`."""
        return "memory" if self.concurrency > self.memory["max_running"] else "client"


def print_memory(catalog: Catalog, question: Question, out: Console) -> None:
    """A line an operating point; for one row also every term of each instance. Raises CatalogError, WorkflowError."""
    entries = _entries(catalog, question)
    device = catalog.testbed(question.testbed).device_bytes
    points, reasons = [], []
    for entry in entries:
        for name in (question.workload,) if question.workload else entry.known_workloads:
            try:
                plan = plan_session(
                    entry.name, name, testbed_id=question.testbed, engine=question.engine, catalog=catalog
                )
                points.append(Point(plan, _memory_of(plan, device)))
            except WorkflowError as error:
                reasons.append(f"{entry.name} {name}: {error}")
    if not points:
        raise CatalogError("; ".join(reasons))
    Console(file=out.file, width=WIDE).print(_table(points))
    budget = _readable(points[0].memory["budget_bytes"])
    legend = [line.format(budget=budget) for line in LEGEND]
    for line in (*legend, *_capped(points, catalog, question.testbed), *reasons):
        _say(line, out)
    if question.name not in catalog.suites:
        for point in points:
            _print_terms(point.plan, device, out)


def _entries(catalog: Catalog, question: Question) -> list[CatalogRow]:
    """The rows that run where the question asks. Raises CatalogError with the reason where none does."""
    if question.engine not in ("default", *catalog.engines):
        raise CatalogError(f"there is no engine {question.engine}{nearest(question.engine, catalog.engines)}")
    asked = catalog.select([question.name])
    found = [resolve(catalog, entry, question.testbed, question.engine) for entry in asked]
    entries = [resolution.entry for resolution in found if resolution.status == "runnable"]
    if not entries:
        none = (
            f"nothing of {question.name} runs" if question.name in catalog.suites else f"{question.name} does not run"
        )
        raise CatalogError(f"{none} on {question.testbed}{_why_none(found, question)}")
    if any(resolution.engine == "sglang" for resolution in found):
        raise CatalogError(PUBLISHED_ENGINE)
    if any(entry.suite.kind == "micro" for entry in entries):
        serving = ", ".join(name for name, suite in catalog.suites.items() if suite.kind == "serving")
        raise CatalogError(f"{question.name} times kernels alone and holds no cache; suites that serve are {serving}")
    known = list(dict.fromkeys(name for entry in entries for name in entry.known_workloads))
    if question.workload and question.workload not in known:
        raise CatalogError(
            f"{question.name} has no workload {question.workload} here{nearest(question.workload, known)}"
        )
    return entries


def _why_none(found: Sequence[Resolution], question: Question) -> str:
    """The reason where all rows have one, else the command that shows each row's."""
    reasons = {resolution.reason for resolution in found}
    if len(reasons) == 1:
        return f": {reasons.pop()}"
    engine = "" if question.engine == "default" else f" --engine {question.engine}"
    return f"; `np1d list {question.name} --testbed {question.testbed}{engine}` says why"


def _capped(points: Sequence[Point], catalog: Catalog, testbed: str) -> list[str]:
    """Where a load that follows from memory stops below it."""
    most = catalog.testbed(testbed).scaling.max_concurrency
    retuned = [point for point in points if catalog.workloads[point.plan.cell.workload].retuned]
    if not any(point.binds == "client" and point.concurrency == most for point in retuned):
        return []
    return [
        f"A re-tuned load stops at {most} requests on {testbed}: rows that hold more are bound by the client there."
    ]


def _memory_of(plan: Plan, device_bytes: int | None) -> Memory:
    return memory_plan(configuration_of(generating_instance(plan.processes)), plan.model, device_bytes)


def _table(points: Iterable[Point]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in COLUMNS:
        table.add_column(name, no_wrap=True, justify="left" if name in LEFT else "right")
    for point in points:
        cell, memory, sent = point.plan.cell, point.memory, point.plan.conditions["scaled"]
        each = f", {memory['slots_per_request']} each" if memory["slots_per_request"] > 1 else ""
        rings = memory.get("bytes.replay_ring", 0) + memory.get("bytes.verify_snapshots", 0)
        table.add_row(
            f"{cell.suite}/{cell.row}", cell.workload, f"{sent['input_len']} + {sent['output_len']}",
            f"{memory['num_pages']} x {_readable(memory['page_bytes'])}",
            f"{memory['num_slots']} x {_readable(memory['slot_bytes'])}{each}",
            _readable(rings) if rings else "-", str(memory["extra_inflight"]),
            str(memory["pages_limit"]), str(memory["slots_limit"]), str(memory["max_running"]),
            str(point.concurrency), point.binds,
        )  # fmt: skip
    return table


def _print_terms(plan: Plan, device_bytes: int | None, out: Console) -> None:
    for process in plan.processes:
        if process.role != "router":
            try:
                text = memory_text(configuration_of(process), plan.model, device_bytes)
            except WorkflowError as error:
                text = str(error)
            _say(f"\n{plan.cell.name}, instance {process.name}\n{text}", out)


def _say(text: str, out: Console) -> None:
    out.print(text, highlight=False, markup=False, soft_wrap=True)


def _readable(num_bytes: int) -> str:
    scale, unit = next(((s, u) for s, u in ((2**30, "GiB"), (2**20, "MiB")) if num_bytes >= s), (2**10, "KiB"))
    return f"{num_bytes / scale:.4g} {unit}"
