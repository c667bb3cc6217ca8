"""What the Snakefile asks: which files a selection of rows comes to, and what each session depends on.

Knows nothing of rules. Everything is derived from the configuration, never from files that happen to lie around.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

from reports.counted import WhatRan
from workflows.blocks import order
from workflows.catalog import Catalog, CatalogRow, load_catalog, nearest
from workflows.data import fault, way_to
from workflows.errors import CatalogError, WorkflowError
from workflows.identity import MEASURE_VERSION, definition_code, digest, drawing_code, measured_code
from workflows.plan import Plan
from workflows.planner import plan_session
from workflows.resolution import Resolution, resolve
from workflows.row_list import row_list
from workflows.schema import Demo

ID = r"[a-z0-9_]+"


class Selection:
    """The rows, testbed and number of sessions that a configuration asks for."""

    def __init__(self, config: Mapping[str, Any], catalog: Catalog | None = None) -> None:
        self.catalog = catalog or load_catalog()
        self.testbed: str = config["testbed"]
        self.engine: str = config["engine"]
        self.sessions = int(config["sessions"])
        self.seed = int(config["seed"])
        self.on_failure: str = config["on_failure"]
        self._patterns = _patterns(config["rows"])
        self._workloads = _patterns(config.get("workloads"))

    @functools.cached_property
    def resolutions(self) -> list[Resolution]:
        """Every selected row, resolved; those that do not run carry their reason. Raises CatalogError."""
        self.catalog.testbed(self.testbed)
        demo = self._demo.rows if self._demo else ()
        entries = self.catalog.select(self._patterns or demo or self.catalog.suites)
        return [self._with_data(resolve(self.catalog, entry, self.testbed, self.engine)) for entry in entries]

    @property
    def _demo(self) -> Demo | None:
        """What is measured where no row is named."""
        return None if self._patterns else self.catalog.config.demo.get(self.testbed)

    @property
    def passes(self) -> int:
        """Passes of each session, 0 for the testbed's own."""
        return (self._demo.passes if self._demo else None) or 0

    def requests(self, wildcards: Mapping[str, str]) -> int:
        """Measured requests of a pass of that session, 0 for the testbed's own."""
        return self._demo.requests_per_pass.get(wildcards["workload"], 0) if self._demo else 0

    def _with_data(self, resolution: Resolution) -> Resolution:
        """A row whose questions are not on this machine cannot run now; the rest of a selection can."""
        if resolution.status != "runnable":
            return resolution
        known = self.catalog.workloads  # a timed kernel has none
        traffics = (known[name] for name in self._workloads_of(resolution.entry) if name in known)
        for name in (traffic.data for traffic in traffics if traffic.data):
            file = self.catalog.data[name]
            if reason := fault(file):
                words = f"{file.path} {reason}; {way_to(name)}"
                return dataclasses.replace(resolution, status="not_applicable", reason=words)
        return resolution

    @property
    def runnable(self) -> list[CatalogRow]:
        """Selected rows that run here. Raises WorkflowError when a row was asked for by name and does not run."""
        for resolution in self.resolutions:
            if resolution.status != "runnable" and resolution.entry.name in self._patterns:
                raise WorkflowError(f"{resolution.entry.name} does not run on {self.testbed}: {resolution.reason}")
        return [resolution.entry for resolution in self.resolutions if resolution.status == "runnable"]

    @functools.cached_property
    def folders(self) -> list[str]:
        """`testbed/suite/row/workload/sK` of every selected session, in the order of running."""
        cells = [
            f"{entry.suite_id}/{entry.row.id}/{workload}"
            for entry in self.runnable
            for workload in self._workloads_of(entry)
        ]
        return [f"{self.folder}/{cell}/s{session}" for cell, session in order(cells, self.sessions, self.seed)]

    def _workloads_of(self, entry: CatalogRow) -> tuple[str, ...]:
        """The row's own, or those that were named. Raises CatalogError for a name that it does not know."""
        for name in self._workloads:
            if name not in entry.known_workloads:
                raise CatalogError(
                    f"{entry.name} has no workload {name or repr(name)}{nearest(name, entry.known_workloads)}"
                )
        return tuple(self._workloads) or entry.workloads

    @property
    def metrics_files(self) -> list[str]:
        """metrics.json of every selected session."""
        return [f"results/{folder}/metrics.json" for folder in self.folders]

    @property
    def row_names(self) -> str:
        """Selected rows that run here, as words of a command."""
        return " ".join(entry.name for entry in self.runnable)

    @property
    def metric_definitions(self) -> str:
        """Digest of what turns records into values."""
        return definition_code()

    @property
    def report_code(self) -> str:
        """Digest of what draws the report."""
        return drawing_code()

    @property
    def rows_here(self) -> str:
        """Digest of what every row of the catalogue comes to on the testbed."""
        return digest(row_list(self.catalog, self.testbed, self.engine))

    @property
    def folder(self) -> str:
        """Folder of the testbed under `results/`."""
        return self.catalog.results_folder(self.testbed, self.engine)

    def plan(self, wildcards: Mapping[str, str]) -> Plan:
        """The plan of the session that these wildcards name."""
        return _plan(
            f"{wildcards['suite']}/{wildcards['row']}",
            wildcards["workload"],
            self.testbed,
            int(wildcards["session"]),
            self.engine,
            self.passes,
            self.requests(wildcards),
        )

    def cell_key(self, wildcards: Mapping[str, str]) -> str:
        """What the session's settings come to, as one canonical text."""
        return self.plan(wildcards).key

    def measured_by(self, wildcards: Mapping[str, str]) -> str:
        """The version of measuring and the digest of the code that the session runs."""
        plan = self.plan(wildcards)
        platform = self.catalog.testbed(self.testbed).platform
        return f"{MEASURE_VERSION}-{measured_code(plan.cell.engine, platform)}"

    def what_runs(self, folder: str) -> WhatRan:
        """What the session in that folder would run today, as its `status.json` would say it."""
        _, suite, row, workload, _ = folder.split("/")
        plan = self.plan({"suite": suite, "row": row, "workload": workload, "session": "0"})
        return plan.key, measured_code(plan.cell.engine, self.catalog.testbed(self.testbed).platform)

    def place(self, wildcards: Mapping[str, str]) -> int:
        """Priority of a session: the earlier in its block, the higher."""
        folder = (
            f"{self.folder}/{wildcards['suite']}/{wildcards['row']}/{wildcards['workload']}/s{wildcards['session']}"
        )
        return len(self.folders) - self.folders.index(folder) if folder in self.folders else 0

    @property
    def model_files(self) -> list[str]:
        """The checkpoints that the testbed serves, where a command of ours writes them."""
        testbed = self.catalog.testbed(self.testbed)
        asked = {name for entry in self.runnable for name in self._workloads_of(entry)} & set(testbed.questions)
        names = dict.fromkeys(
            [testbed.model, *(testbed.questions[name].model or testbed.model for name in sorted(asked))]
        )
        models = [self.catalog.models[name] for name in names]
        return [f"{model.path}/config.json" for model in models if model.build]


def _patterns(rows: Any) -> list[str]:
    if isinstance(rows, str):
        return [part for part in rows.replace(",", " ").split() if part]
    return list(rows or ())


@functools.cache
def _plan(row: str, workload: str, testbed: str, session: int, engine: str, passes: int, requests: int) -> Plan:
    return plan_session(
        row, workload, testbed_id=testbed, session=session, engine=engine, passes=passes, requests=requests
    )
