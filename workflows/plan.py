"""A session's full description: `plan.json`. With it and the commit, anyone can run that one session by hand.

    python -m workflows.plan --testbed cpu --row decode/baseline --workload sp99_9 --session 0 --out plan.json

Knows nothing of running processes. Ports are names (`{port:p0}`) until a session has taken a block of them; everything
else is fixed here. Paths are relative to the repository or to the session's own folder (`{dir}`).
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from workflows.errors import WorkflowError
from workflows.identity import canonical, digest
from workloads.files import read_json, write_json

PLAN_SCHEMA = "plan/1"
SIDES = ("candidate", "baseline")
"""Of a pair that is measured in turn."""
MAX_SHOWN = 200
"""Characters of a value that a list of differences shows."""


class Part(BaseModel):
    """Base of every part of a plan: an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class Cell(Part):
    """Which place in the tables a session fills."""

    testbed: str
    suite: str
    row: str
    workload: str
    session: int
    engine: Literal["stack", "sglang"]

    @property
    def folder(self) -> str:
        """Folder under `results/`."""
        return f"{self.testbed}/{self.suite}/{self.row}/{self.workload}/s{self.session}"

    @property
    def name(self) -> str:
        """`suite/row` and workload, as a person writes it."""
        return f"{self.suite}/{self.row} {self.workload}"


class Ready(Part):
    """When a process may be used: a status of 200, and where it says so, a count of healthy workers."""

    path: str
    healthy_workers: int | None = None


class ProcessPlan(Part):
    """One server to start."""

    name: str
    role: Literal["prefill", "decode", "single", "router"]
    command: tuple[str, ...]
    """Arguments; `{python}`, `{dir}` and `{port:NAME}` are filled in by the session."""
    env: dict[str, str] = {}
    ports: tuple[str, ...]
    """Names of the ports that it listens on, the API first."""
    files: dict[str, Any] = {}
    """Files that it reads, by name in the session's folder."""
    ready: Ready
    after: tuple[str, ...] = ()
    """Processes that must be ready before this one is started."""
    gpus: tuple[int, ...] = ()


class ClientPlan(Part):
    """How the load is driven."""

    command: tuple[str, ...]
    url_port: str
    workload: dict[str, Any]
    """A `workloads.spec.Workload`, complete; of a kernel timed alone, what is timed."""
    gpus: tuple[int, ...] = ()
    """GPUs that it uses itself."""


class DataNeed(Part):
    """A file that the client reads: where it must lie, and its digest."""

    name: str
    path: str
    sha256: str


class Limits(Part):
    """How long things may take, and what must be free before anything starts."""

    ready_timeout_s: float
    deadline_s: float
    grace_s: float = 15.0
    """Time between the request to stop and the kill."""
    port_base: int
    needed_memory_gib: float = 0.0


class Plan(Part):
    """Everything about one session."""

    schema_: Literal["plan/1"] = Field(default="plan/1", alias="schema")
    cell: Cell
    question: str
    metric: str
    expect: dict[str, str] | None
    published: str | None
    measure_version: int
    settings: dict[str, dict[str, Any]]
    """Dotted settings of each half, scaled: what the row is."""
    parts: tuple[str, ...]
    left_out: dict[str, str]
    labels: dict[str, Any]
    """What is simulated or scaled; a claim reads them before it compares."""
    conditions: dict[str, Any]
    """Published and scaled lengths and loads, side by side."""
    measured_alone: dict[str, str] = {}
    """Of a row put together from two halves, the row that measures each half by itself on this testbed."""
    model: dict[str, Any]
    data: tuple[DataNeed, ...] = ()
    processes: tuple[ProcessPlan, ...]
    client: ClientPlan
    limits: Limits

    model_config = ConfigDict(populate_by_name=True, serialize_by_alias=True)

    def to_json(self) -> dict[str, Any]:
        """Plain values, ready for `write_json`."""
        return self.model_dump(mode="json")

    @property
    def in_turn(self) -> dict[str, Any] | None:
        """Of a session of a pair: which side it is, and what it takes turns with."""
        return self.conditions.get("in_turn")

    @property
    def title(self) -> str:
        """The cell's name, and of a pair the side."""
        return f"{self.cell.name}, {self.in_turn['side']}" if self.in_turn else self.cell.name

    @property
    def key(self) -> str:
        """Digest of all that a measurement depends on: no captions, no published values, no session number."""
        body = self.to_json()
        for caption in ("question", "expect", "published", "cell", "metric", "measured_alone"):
            del body[caption]
        body["client"]["workload"].pop("identity")
        return f"{self.cell.suite}/{self.cell.row}/{self.cell.workload}@{self.cell.testbed}#{digest(body)}"


def read_plan(path: Path) -> Plan:
    """A plan from its file. Raises WorkflowError with one sentence for anything else."""
    try:
        return Plan.model_validate(read_json(path))
    except FileNotFoundError:
        raise WorkflowError(f"there is no plan {path}; `np1d plan ROW` writes one") from None
    except ValueError as error:
        raise WorkflowError(f"{path} is not a plan of this version: {str(error).splitlines()[0]}") from None


def difference(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """`path: old -> new` for every value that differs between two plans; an entry of a list goes by its `name`."""
    before, after = dict(_leaves(old, "")), dict(_leaves(new, ""))
    return [
        f"{path}: {_short(before.get(path, 'absent'))} -> {_short(after.get(path, 'absent'))}"
        for path in sorted(before.keys() | after.keys())
        if before.get(path) != after.get(path)
    ]


def _short(text: str) -> str:
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}... ({len(text)} characters)"


def _leaves(node: Any, prefix: str) -> list[tuple[str, str]]:
    if isinstance(node, list) and node and all(isinstance(entry, dict) and "name" in entry for entry in node):
        node = {entry["name"]: entry for entry in node}
    if isinstance(node, dict) and node:
        return [
            leaf for key, child in node.items() for leaf in _leaves(child, f"{prefix}.{key}" if prefix else str(key))
        ]
    return [(prefix, canonical(node))]


def main(arguments: Sequence[str] | None = None) -> int:
    """Write one plan. Exit code 2 for a mistake of the user."""
    from workflows.planner import plan_session

    parser = argparse.ArgumentParser(prog="python -m workflows.plan", description="Write the plan of one session.")
    parser.add_argument("--testbed", required=True)
    parser.add_argument("--row", required=True, help="suite/row")
    parser.add_argument("--workload", required=True)
    parser.add_argument("--session", type=int, default=0)
    parser.add_argument("--engine", default="default")
    parser.add_argument("--passes", type=int, default=0, help="passes of a session (0: the testbed's own)")
    parser.add_argument("--requests", type=int, default=0, help="measured requests of a pass (0: the testbed's own)")
    parser.add_argument("--side", choices=SIDES, help="of a pair measured in turn: which one this session is")
    parser.add_argument("--other", default="", help="of a pair: what the other side is, such as its commit")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(arguments)
    try:
        plan = plan_session(
            options.row,
            options.workload,
            testbed_id=options.testbed,
            session=options.session,
            engine=options.engine,
            passes=options.passes,
            requests=options.requests,
            in_turn={"side": options.side, "other": options.other} if options.side else None,
        )
    except WorkflowError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    write_json(options.out, plan.to_json())
    return 0


if __name__ == "__main__":
    sys.exit(main())
