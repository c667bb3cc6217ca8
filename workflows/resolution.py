"""What a row comes to on one testbed: its settings for each half, the parts left out, or why it cannot run there.

Knows nothing of commands. A row that would be the same as its base, or as an earlier row of its suite, is not
applicable on that testbed: it would measure one thing under two names.
"""

import dataclasses
from typing import Any, Literal

from workflows.catalog import HALVES, Catalog, CatalogRow, nearest, sglang_column
from workflows.errors import CatalogError
from workflows.schema import Testbed

Status = Literal["runnable", "not_applicable", "not_built", "script_only"]


@dataclasses.dataclass(frozen=True, slots=True)
class Resolution:
    """A row on a testbed. `status` other than runnable has its `reason`."""

    entry: CatalogRow
    testbed_id: str
    engine: Literal["stack", "sglang"]
    status: Status
    reason: str
    settings: dict[str, dict[str, Any]]
    """Dotted settings by half: the testbed's, then the row's; lengths not yet scaled."""
    parts: tuple[str, ...]
    """Parts that this testbed has."""
    left_out: dict[str, str]
    """Parts that it lacks, each with the reason."""


def resolve(catalog: Catalog, entry: CatalogRow, testbed_id: str, engine: str = "default") -> Resolution:
    """Resolve one row; never raises for a row that cannot run, but says why. Raises CatalogError for unknown names."""
    testbed = catalog.testbed(testbed_id)
    if engine != "default" and engine not in catalog.engines:
        raise CatalogError(f"there is no engine {engine}{nearest(engine, catalog.engines)}")
    chosen: Literal["stack", "sglang"] = testbed.engine if engine == "default" else engine  # type: ignore[assignment]
    settings, parts, left_out = _effective(catalog, entry, testbed)
    status, reason = _verdict(catalog, entry, testbed, chosen, (settings, parts))
    return Resolution(entry, testbed_id, chosen, status, reason, settings, parts, left_out)


def measured_as(catalog: Catalog, entry: CatalogRow, testbed_id: str) -> str:
    """The row under whose name these settings are measured there: the first of the suite that comes to the same."""
    testbed = catalog.testbed(testbed_id)
    return _first_twin(catalog, entry, testbed, _effective(catalog, entry, testbed)[:2]) or entry.name


def _effective(
    catalog: Catalog, entry: CatalogRow, testbed: Testbed
) -> tuple[dict[str, dict[str, Any]], tuple[str, ...], dict[str, str]]:
    settings: dict[str, dict[str, Any]] = {}
    parts: set[str] = set()
    left_out: dict[str, str] = {}
    lacks = testbed.lacks_for(entry.suite_id)
    for half in HALVES:
        merged = {**testbed.settings.get("all", {}), **testbed.settings.get(half, {})}
        for part, own in catalog.layers(entry.name, half):
            if part is None:
                merged |= own
            elif part in lacks:
                left_out[part] = lacks[part]
            else:
                parts.add(part)
                merged |= own
        settings[half] = merged
    return settings, tuple(sorted(parts)), left_out


def _verdict(
    catalog: Catalog, entry: CatalogRow, testbed: Testbed, engine: str, effective: tuple[Any, Any]
) -> tuple[Status, str]:
    if reason := _impossible(catalog, entry, testbed, engine):
        return "not_applicable", reason
    if engine == "stack":
        if reason := _unbuilt(catalog, entry, effective[1]):
            return "not_built", reason
        if reason := _idle(catalog, entry, testbed, effective) or _twin(catalog, entry, testbed, effective):
            return "not_applicable", reason
    if testbed.placement in ("two_nodes", "published_script"):
        return "script_only", "np1d plan --commands prints the scripts for its hosts"
    return "runnable", ""


def _impossible(catalog: Catalog, entry: CatalogRow, testbed: Testbed, engine: str) -> str:
    if engine not in testbed.engines:
        return f"engine {engine} does not run on this testbed"
    if (testbed.platform == "ascend") != (entry.suite.kind == "script"):
        return "the rows of testbed ascend_a3 are the published Ascend scenarios, and they are its alone"
    if engine == "stack" and entry.row.stack.none:
        return entry.row.stack.none
    if engine == "stack" and testbed.gpus_per_instance > 1:
        return f"an instance of our engine has one GPU, and this testbed's have {testbed.gpus_per_instance}"
    if engine == "sglang":
        columns = (sglang_column(catalog, entry.name, half) for half in HALVES)
        if reason := next((column["none"] for column in columns if column["none"]), None):
            return str(reason)
    for need, asking in catalog.needs(entry.name).items():
        if need in testbed.lacks_for(entry.suite_id):
            whose = "" if asking == entry.name else f"{asking} "
            return f"{whose}needs {need}: {testbed.lacks[need]}"
    if entry.suite.kind == "serving":
        instances = testbed.num_prefill(entry.suite_id, entry.suite.prefill) + entry.suite.decode
        if testbed.placement != "colocated" and instances > testbed.max_instances:
            return f"needs {instances} instances and this testbed holds {testbed.max_instances}"
        if engine == "stack" and entry.suite_id not in testbed.budgets:
            return f"the testbed has no memory budget for the ladder {entry.suite_id}"
    return ""


def _unbuilt(catalog: Catalog, entry: CatalogRow, parts: tuple[str, ...]) -> str:
    if entry.suite.kind == "micro" and entry.row.bench is None:
        return "not built yet: no timed call is declared for it"
    for need in (*catalog.needs(entry.name), *parts):
        if reason := catalog.not_built(need):
            return f"not built yet: {need} ({reason})"
    return ""


def _idle(catalog: Catalog, entry: CatalogRow, testbed: Testbed, effective: tuple[Any, Any]) -> str:
    base = entry.row.base
    if not isinstance(base, str):
        return ""
    base_entry = catalog.row(base)
    same_load = all(
        catalog.concurrency(entry.name, w) == catalog.concurrency(base, w) and w in base_entry.workloads
        for w in entry.workloads
    ) and catalog.accept_length(entry.name) == catalog.accept_length(base)
    settings, parts, _ = _effective(catalog, base_entry, testbed)
    if same_load and (settings, parts) == effective and entry.suite_id == base_entry.suite_id:
        lacks = testbed.lacks_for(entry.suite_id)
        missing = ", ".join(part for part in entry.row.wants if part in lacks) or "its settings"
        return f"changes nothing here: the testbed lacks {missing}"
    return ""


def _twin(catalog: Catalog, entry: CatalogRow, testbed: Testbed, effective: tuple[Any, Any]) -> str:
    """The earlier row of the suite that comes to the same here, in words; empty where there is none."""
    twin = _first_twin(catalog, entry, testbed, effective)
    return f"the same as {twin} here" if twin else ""


def _first_twin(catalog: Catalog, entry: CatalogRow, testbed: Testbed, effective: tuple[Any, Any]) -> str:
    own = _load_of(catalog, entry)
    for name, other in catalog.rows.items():
        if name == entry.name:
            return ""
        if other.suite_id != entry.suite_id or _load_of(catalog, other) != own:
            continue
        settings, parts, _ = _effective(catalog, other, testbed)
        if (settings, parts) == effective and not _impossible(catalog, other, testbed, "stack"):
            return name
    return ""


def _load_of(catalog: Catalog, entry: CatalogRow) -> tuple[Any, ...]:
    loads = {workload: catalog.concurrency(entry.name, workload) for workload in entry.workloads}
    return loads, catalog.accept_length(entry.name), entry.row.bench
