"""`np1d plan --memory`: what rows hold at each operating point, and whether memory or the client limits a batch.

Knows how plans are made and how tables are printed; the numbers are the engine's.
"""

import dataclasses
from collections.abc import Iterable, Iterator

from rich.console import Console
from rich.table import Table

from workflows.catalog import Catalog, CatalogRow
from workflows.errors import CatalogError, NotApplicableError, WorkflowError
from workflows.memory import configuration_of, generating_instance, memory_plan, memory_text
from workflows.plan import Plan
from workflows.planner import plan_session
from workflows.resolution import resolve

COLUMNS = (
    "row",
    "workload",
    "tokens",
    "budget",
    "page B",
    "slot B",
    "by pages",
    "by slots",
    "limit",
    "client",
    "binds",
)


@dataclasses.dataclass(frozen=True, slots=True)
class Point:
    """One operating point: a row under one workload, and what the instance that generates holds."""

    row: str
    workload: str
    input_len: int
    output_len: int
    concurrency: int
    memory: dict[str, int]

    @property
    def binds(self) -> str:
        """What keeps more requests from running: `memory` where the client asks for more than fits, else `client`."""
        return "memory" if self.concurrency > self.memory["max_running"] else "client"


def print_memory(catalog: Catalog, name: str, workload: str, testbed: str, engine: str, out: Console) -> None:
    """A line an operating point; for one row also every term of each instance. Raises CatalogError, WorkflowError."""
    entries = catalog.select([name])
    made = list(_plans(catalog, entries, workload, testbed, engine))
    if not made:
        raise CatalogError(f"nothing of {name} runs on {testbed}; `np1d list {name}` says why")
    lines, refused = [], []
    for plan in made:
        try:
            lines.append(_point(plan))
        except WorkflowError as error:
            refused.append(f"{plan.cell.name}: {error}")
    out.print(_table(lines))
    for sentence in refused:
        out.print(sentence, highlight=False, markup=False, soft_wrap=True)
    if name not in catalog.suites:
        for plan in made:
            _print_terms(plan, out)


def _plans(catalog: Catalog, entries: Iterable[CatalogRow], workload: str, testbed: str, engine: str) -> Iterator[Plan]:
    for entry in entries:
        if resolve(catalog, entry, testbed, engine).status != "runnable":
            continue
        for name in (workload,) if workload else entry.known_workloads:
            try:
                yield plan_session(entry.name, name, testbed_id=testbed, engine=engine, catalog=catalog)
            except NotApplicableError:
                continue


def _point(plan: Plan) -> Point:
    scaled = plan.conditions["scaled"]
    return Point(
        row=f"{plan.cell.suite}/{plan.cell.row}",
        workload=plan.cell.workload,
        input_len=scaled["input_len"],
        output_len=scaled["output_len"],
        concurrency=scaled["concurrency"],
        memory=memory_plan(configuration_of(generating_instance(plan.processes)), plan.model),
    )


def _table(points: Iterable[Point]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in COLUMNS:
        table.add_column(name, no_wrap=True, justify="left" if name in ("row", "workload", "binds") else "right")
    for point in points:
        memory = point.memory
        table.add_row(
            point.row, point.workload, f"{point.input_len} + {point.output_len}",
            f"{memory['budget_bytes'] / 2**20:g} MiB", f"{memory['page_bytes']:,}", f"{memory['slot_bytes']:,}",
            str(memory["pages_limit"]), str(memory["slots_limit"]), str(memory["max_running"]),
            str(point.concurrency), point.binds,
        )  # fmt: skip
    return table


def _print_terms(plan: Plan, out: Console) -> None:
    for process in plan.processes:
        if process.role != "router":
            text = memory_text(configuration_of(process), plan.model)
            title = f"\n{plan.cell.name}, instance {process.name}\n"
            out.print(title + text, highlight=False, markup=False, soft_wrap=True)
