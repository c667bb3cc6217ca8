"""All rows, suites, testbeds and models, read once and checked as a whole.

Knows nothing of commands or files of a run. Settings are checked against `stack.config`; a mistake is refused with file
and line, before anything starts. A row inherits from its base, role by role.
"""

import dataclasses
import difflib
import functools
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ValidationError

from stack.config import EngineConfig, with_settings
from stack.core.errors import ConfigError
from workflows import schema
from workflows.errors import CatalogError
from workflows.leave_one_out import variants
from workflows.located_yaml import LocatedYaml, Place, load
from workloads.definitions import METRICS, SCORE_METRICS

ROOT = Path(__file__).resolve().parent.parent
METRIC_NAMES = tuple(metric.key for metric in (*METRICS, *SCORE_METRICS))
HALVES: tuple[Literal["prefill", "decode"], ...] = ("prefill", "decode")


@dataclasses.dataclass(frozen=True, slots=True)
class CatalogRow:
    """A row with the suite it stands in."""

    suite_id: str
    suite: schema.Suite
    row: schema.Row
    where: str
    generated: bool = False
    places: dict[str, str] = dataclasses.field(default_factory=dict, compare=False)
    """`file:line` of each setting of its own."""

    @property
    def name(self) -> str:
        """`suite/row`."""
        return f"{self.suite_id}/{self.row.id}"

    def base_of(self, half: Literal["prefill", "decode"]) -> str | None:
        """The row that this half changes."""
        base = self.row.base
        return base.get(half) if isinstance(base, dict) else base

    @property
    def workloads(self) -> tuple[str, ...]:
        """Workloads that the row runs; a kernel timed alone serves none, and its place is called so."""
        if self.suite.kind == "micro":
            return ("kernel",)
        return self.row.workloads if self.row.workloads is not None else self.suite.workloads

    @property
    def known_workloads(self) -> tuple[str, ...]:
        """Those, and the ones that it runs on request."""
        return (*self.workloads, *(() if self.row.workloads is not None else self.suite.on_request))


@dataclasses.dataclass(frozen=True)
class Catalog:
    """Everything in `config/`."""

    config: schema.Config
    workloads: dict[str, schema.SuiteWorkload]
    suites: dict[str, schema.Suite]
    rows: dict[str, CatalogRow]
    testbeds: dict[str, schema.Testbed]
    models: dict[str, schema.Model]
    engines: dict[str, schema.Engine]
    mechanisms: dict[str, schema.Mechanism]
    launches: dict[str, Any]
    data: dict[str, schema.DataFile] = dataclasses.field(default_factory=dict)

    def row(self, name: str) -> CatalogRow:
        """The row of that name. Raises CatalogError with the nearest names; a published name is understood too."""
        if name in self.rows:
            return self.rows[name]
        for entry in self.rows.values():
            if entry.row.published and name == f"{entry.suite_id}/{entry.row.published}":
                return entry
        raise CatalogError(self._no_row(name))

    def _no_row(self, name: str) -> str:
        """What is said of a name that is no row's, by the way in which it is none."""
        if name in self.suites:
            first = next(entry.name for entry in self.rows.values() if entry.suite_id == name)
            return f"{name} is a suite and one row is asked for, such as {first}; `np1d list {name}` shows its rows"
        row, _, rest = name.strip("/").rpartition("/")
        if row in self.rows and rest:
            return f"there is no row {name}; {row} is one, and a workload of it is named with --workload"
        if row.rpartition("/")[0] in self.rows:
            return f"there is no row {name}; a row is named as suite/row, such as {row.rpartition('/')[0]}"
        if alike := [known for known in self.rows if known.partition("/")[2] == name]:
            return f"there is no suite or row {name}; did you mean {' or '.join(alike)}?"
        if "," in name or " " in name:
            return f"there is no row {name!r}; names of several rows are given apart, with spaces and no commas"
        if "*" in name:
            return f"there is no row {name}; the name of a suite alone stands for all of its rows"
        known = self.rows if "/" in name else self.suites
        return f"there is no {'row' if '/' in name else 'suite or row'} {name or repr(name)}{nearest(name, known)}"

    def testbed(self, name: str) -> schema.Testbed:
        """The testbed of that name."""
        if name not in self.testbeds:
            raise CatalogError(f"there is no testbed {name}{nearest(name, self.testbeds)}")
        return self.testbeds[name]

    def results_folder(self, testbed: str, engine: str) -> str:
        """Folder under `results/`; an engine that is not the testbed's own has another. Raises CatalogError."""
        default = self.testbed(testbed).engine
        if engine not in ("default", *self.engines):
            raise CatalogError(f"there is no engine {engine}{nearest(engine, self.engines)}")
        return testbed if engine in ("default", default) else f"{testbed}_{engine}"

    def select(self, patterns: Iterable[str]) -> list[CatalogRow]:
        """Rows of the named suites and rows, in catalogue order, each once."""
        wanted: set[str] = set()
        for given in patterns:
            pattern = given.rstrip("/") or given
            if pattern in self.suites:
                wanted |= {
                    name for name, entry in self.rows.items() if entry.suite_id == pattern and not entry.generated
                }
            else:
                wanted.add(self.row(pattern).name)
        return [entry for name, entry in self.rows.items() if name in wanted]

    def chain(self, name: str, half: Literal["prefill", "decode"]) -> list[CatalogRow]:
        """The row's ancestors for one half, the first one first, then the row itself."""
        chain: list[CatalogRow] = []
        current: str | None = name
        while current is not None:
            entry = self.row(current)
            if entry in chain:
                loop = " -> ".join(e.name for e in [*chain, entry])
                raise CatalogError(f"{entry.where}: rows go in a circle: {loop}; one of them needs another base")
            chain.append(entry)
            current = entry.base_of(half)
        return chain[::-1]

    def settings(self, name: str, half: Literal["prefill", "decode"]) -> dict[str, Any]:
        """Dotted settings of one half after inheritance, without the parts that a testbed may lack."""
        merged: dict[str, Any] = {}
        for part, settings in self.layers(name, half):
            if part is None:
                merged |= settings
        return merged

    def layers(self, name: str, half: Literal["prefill", "decode"]) -> Iterator[tuple[str | None, dict[str, Any]]]:
        """Settings in the order in which they apply, each with its part, or with None where they are a row's own.

        A part that a later row drops is left out.
        """
        chain = self.chain(name, half)
        for index, entry in enumerate(chain):
            yield None, {**_scoped(entry.row.set, half), **_scoped(entry.row.stack.set, half)}
            dropped = {part for later in chain[index:] for part in later.row.drops}
            for part, settings in entry.row.wants.items():
                if part not in dropped:
                    yield part, _scoped(settings, half)

    def needs(self, name: str) -> dict[str, str]:
        """Mechanisms and abilities that the row and its ancestors need, each with the row that asked for it."""
        return {need: entry.name for half in HALVES for entry in self.chain(name, half) for need in entry.row.needs}

    def concurrency(self, name: str, workload: str) -> int:
        """Published client concurrency, before scaling."""
        for entry in reversed(self.chain(name, "decode")):
            if workload in entry.row.concurrency:
                return entry.row.concurrency[workload]
        return self.workloads[workload].concurrency if workload in self.workloads else 1

    def accept_length(self, name: str) -> float | None:
        """Committed tokens a verify that the row is measured with; None where nothing is speculated."""
        settings = self.settings(name, "decode")
        if settings.get("speculation.method", "off") == "off":
            return None
        lengths = [entry.row.accept_length for entry in reversed(self.chain(name, "decode"))]
        return next((length for length in lengths if length is not None), None)

    def not_built(self, mechanism: str) -> str | None:
        """Why a mechanism is not there; None when it is built, or is an ability of testbeds alone."""
        known = self.mechanisms.get(mechanism)
        if known is None or known.not_built:
            return known.not_built if known else None
        return next((f"{file} is missing" for file in known.files if not (ROOT / file).exists()), None)


@functools.cache
def load_catalog(folder: Path = schema.CONFIG_FOLDER) -> Catalog:
    """Read and check everything in `folder`. Raises CatalogError with file and line."""
    ladders_yaml = load(folder / "ladders.yaml")
    ladders = _parse(schema.Ladders, ladders_yaml)
    catalog = Catalog(
        config=_parse(schema.Config, load(folder / "config.yaml")),
        workloads=ladders.workloads,
        suites=ladders.suites,
        rows=_rows(ladders, ladders_yaml),
        testbeds={p.stem: _parse(schema.Testbed, load(p)) for p in sorted((folder / "testbeds").glob("*.yaml"))},
        models=_parse_map(schema.Model, load(folder / "models.yaml")),
        engines=_parse_map(schema.Engine, load(folder / "engines.yaml")),
        mechanisms=_parse_map(schema.Mechanism, load(folder / "mechanisms.yaml")),
        launches=load(folder / "launches.yaml").data,
        data=_parse_map(schema.DataFile, load(folder / "data.yaml")),
    )
    catalog = _with_ascend(catalog, load(folder / "launches_ascend.yaml"))
    _check_references(catalog, ladders_yaml)
    for entry in catalog.rows.values():
        _check_row(catalog, entry)
    _check_twins(catalog)
    return _with_variants(catalog)


def nearest(name: str, known: Iterable[str]) -> str:
    """`; did you mean ...?`, or the list of what there is when nothing is near."""
    names = list(dict.fromkeys(known))
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    if close:
        return f"; did you mean {' or '.join(close)}?"
    return f"; there are {', '.join(names)}" if len(names) <= 12 else "; `np1d list` shows what there is"


def _rows(ladders: schema.Ladders, source: LocatedYaml) -> dict[str, CatalogRow]:
    rows: dict[str, CatalogRow] = {}
    for suite_id, suite in ladders.suites.items():
        for index, row in enumerate(suite.rows):
            place = ("suites", suite_id, "rows", index)
            entry = CatalogRow(suite_id, suite, row, source.where(*place), places=_places(row, source, place))
            if entry.name in rows:
                raise CatalogError(f"{entry.where}: row {entry.name} stands twice, first at {rows[entry.name].where}")
            rows[entry.name] = entry
    return rows


def _places(row: schema.Row, source: LocatedYaml, place: Place) -> dict[str, str]:
    parts: list[tuple[Place, schema.Settings]] = [(("set",), row.set), (("stack", "set"), row.stack.set)]
    parts += [(("wants", name), settings) for name, settings in row.wants.items()]
    return {
        key: source.where(*place, *part, scope, key)
        for part, settings in parts
        for scope, values in settings.items()
        for key in values
    }


def _with_ascend(catalog: Catalog, source: LocatedYaml) -> Catalog:
    """The published Ascend scenarios as a suite of rows that exist as scripts alone."""
    rows = tuple(
        schema.Row(
            id=scenario,
            question=f"{body['title']}: does the published launch meet {body['target']['tpot_ms']} ms a token?",
            stack=schema.StackColumn(none="our engine does not run on NPUs"),
            sglang=schema.SglangColumn(launch=scenario),
            published=scenario,
        )
        for scenario, body in source.data.items()
    )
    suite = schema.Suite(question="What was published for GLM-5.1 on Ascend A3?", kind="script", rows=rows)
    entries = {f"ascend/{row.id}": CatalogRow("ascend", suite, row, source.where(row.id)) for row in rows}
    return dataclasses.replace(
        catalog,
        suites={**catalog.suites, "ascend": suite},
        rows={**catalog.rows, **entries},
        launches={**catalog.launches, **source.data},
    )


def _with_variants(catalog: Catalog) -> Catalog:
    rows = dict(catalog.rows)
    for suite_id, suite in catalog.suites.items():
        if suite.leave_one_out:
            for row in variants(catalog, f"{suite_id}/{suite.leave_one_out}"):
                entry = CatalogRow(
                    suite_id, suite, row, rows[f"{suite_id}/{suite.leave_one_out}"].where, generated=True
                )
                rows[entry.name] = entry
    return dataclasses.replace(catalog, rows=rows)


def _check_references(catalog: Catalog, source: LocatedYaml) -> None:
    for suite_id, suite in catalog.suites.items():
        named = (*suite.workloads, *suite.on_request, *(w for row in suite.rows for w in row.workloads or ()))
        for workload in named:
            if workload not in catalog.workloads:
                where = source.where("suites", suite_id, "workloads")
                raise CatalogError(f"{where}: there is no workload {workload}{nearest(workload, catalog.workloads)}")
    for name, traffic in catalog.workloads.items():
        if traffic.data and traffic.data not in catalog.data:
            where = source.where("workloads", name)
            raise CatalogError(f"{where}: there is no data file {traffic.data}{nearest(traffic.data, catalog.data)}")
    for name, testbed in catalog.testbeds.items():
        for model in (testbed.model, *testbed.models.values()):
            if model not in catalog.models:
                raise CatalogError(f"{name}.yaml:1: there is no model {model}{nearest(model, catalog.models)}")
        for half in HALVES:
            _check_settings(_scoped(testbed.settings, half), half, f"{name}.yaml:1")
    for pattern in catalog.config.rows:
        catalog.select([pattern])


def _check_row(catalog: Catalog, entry: CatalogRow) -> None:
    for half in HALVES:
        for ancestor in _bases(entry, half):
            if ancestor not in catalog.rows:
                raise CatalogError(f"{entry.where}: there is no row {ancestor}{nearest(ancestor, catalog.rows)}")
        _check_settings(catalog.settings(entry.name, half), half, entry.where, entry.places)
    for need in (*entry.row.needs, *entry.row.wants):
        lacking = {name for testbed in catalog.testbeds.values() for name in testbed.lacks}
        if need not in catalog.mechanisms and need not in lacking:
            raise CatalogError(
                f"{entry.where}: nothing is called {need}{nearest(need, [*catalog.mechanisms, *lacking])}"
            )
    if entry.row.expect and entry.row.expect.metric not in METRIC_NAMES:
        metric = entry.row.expect.metric
        raise CatalogError(f"{entry.where}: there is no metric {metric}{nearest(metric, METRIC_NAMES)}")
    launch = entry.row.sglang.launch
    if launch and launch not in catalog.launches:
        raise CatalogError(f"{entry.where}: there is no launch {launch}{nearest(launch, catalog.launches)}")
    sets_running = any("scheduler.max_running" in s for s in (*entry.row.set.values(), *entry.row.stack.set.values()))
    if sets_running and not entry.row.fixes_running:
        raise CatalogError(
            f"{entry.where}: scheduler.max_running follows from the memory budget; remove it, "
            "or give the reason in fixes_running"
        )
    speculates = catalog.settings(entry.name, "decode").get("speculation.method", "off") != "off"
    if speculates and catalog.accept_length(entry.name) is None:
        raise CatalogError(f"{entry.where}: row {entry.name} speculates; give its accept_length, published or assumed")
    if entry.row.base is not None and _changes_nothing(catalog, entry):
        raise CatalogError(f"{entry.where}: row {entry.name} changes nothing of its base; remove it or set something")


def _bases(entry: CatalogRow, half: Literal["prefill", "decode"]) -> Iterator[str]:
    base = entry.base_of(half)
    if base is not None:
        yield base


def _check_settings(settings: dict[str, Any], half: str, where: str, places: Mapping[str, str] | None = None) -> None:
    try:
        with_settings(EngineConfig(), {"role": half, **settings})
    except ConfigError as error:
        named = (place for key, place in (places or {}).items() if key in str(error))
        raise CatalogError(f"{next(named, where)}: {error} ({half})") from None


def _check_twins(catalog: Catalog) -> None:
    seen: dict[str, CatalogRow] = {}
    for entry in catalog.rows.values():
        key = repr((entry.suite_id, _identity(catalog, entry)))
        if key in seen:
            other = seen[key]
            raise CatalogError(f"{entry.where}: row {entry.name} is the same as {other.name} at {other.where}")
        seen[key] = entry


def _identity(catalog: Catalog, entry: CatalogRow) -> dict[str, Any]:
    return _meaning(catalog, dict.fromkeys(HALVES, entry.name), entry)


def _changes_nothing(catalog: Catalog, entry: CatalogRow) -> bool:
    own, base = _identity(catalog, entry), _base_identity(catalog, entry)
    if base is not None and entry.row.sglang.none:  # having no launch is no change
        own["sglang"] = base["sglang"]
    return own == base


def _base_identity(catalog: Catalog, entry: CatalogRow) -> dict[str, Any] | None:
    names = {half: entry.base_of(half) for half in HALVES}
    named = {half: name for half, name in names.items() if name}
    return _meaning(catalog, named, catalog.rows[next(iter(named.values()))]) if len(named) == len(HALVES) else None


def _meaning(catalog: Catalog, names: dict[Any, str], entry: CatalogRow) -> dict[str, Any]:
    return {
        "settings": {half: dict(sorted(catalog.settings(name, half).items())) for half, name in names.items()},
        "sglang": {half: sglang_column(catalog, name, half) for half, name in names.items()},
        "suite": (entry.suite.prefill, entry.suite.decode, entry.suite.router, entry.suite.kind),
        "workloads": entry.workloads,
        "accept_length": catalog.accept_length(entry.name),
        "bench": entry.row.bench,
        "concurrency": {w: catalog.concurrency(entry.name, w) for w in entry.workloads},
        "needs": sorted(catalog.needs(entry.name)) if entry.suite.kind != "serving" else (),
        "parts": {
            half: [(part, settings) for part, settings in catalog.layers(name, half) if part]
            for half, name in names.items()
        },
    }


def sglang_column(catalog: Catalog, name: str, half: Literal["prefill", "decode"]) -> dict[str, Any]:
    """The published engine's column of one half after inheritance: `none`, or launch, flags and environment."""
    column: dict[str, Any] = {"launch": None, "flags": {}, "env": {}, "notes": []}
    for entry in catalog.chain(name, half):
        own = entry.row.sglang
        if own.launch:
            column |= {"launch": own.launch, "flags": {}, "env": {}}
        column["flags"] = column["flags"] | _scoped(own.flags, half)
        column["env"] = column["env"] | _scoped(own.env, half)
        column["notes"] = [*column["notes"], own.note] if own.note else column["notes"]
        column["none"] = own.none
    return column


def _scoped(settings: dict[Any, dict[str, Any]], half: str) -> dict[str, Any]:
    return {**settings.get("all", {}), **settings.get(half, {})}


def _parse(model: type[BaseModel], source: LocatedYaml) -> Any:
    try:
        return model.model_validate(source.data)
    except ValidationError as error:
        raise CatalogError(_sentence(error, source, model)) from None


def _parse_map(model: type[BaseModel], source: LocatedYaml) -> dict[str, Any]:
    parsed = {}
    for name, body in (source.data or {}).items():
        try:
            parsed[name] = model.model_validate(body)
        except ValidationError as error:
            raise CatalogError(_sentence(error, source, model, name)) from None
    return parsed


def _sentence(error: ValidationError, source: LocatedYaml, model: type[BaseModel], *prefix: str) -> str:
    first = error.errors()[0]
    place = (*prefix, *first["loc"])
    dotted = ".".join(str(part) for part in place) or "the file"
    if first["type"] == "extra_forbidden":
        return f"{source.where(*place)}: unknown key {dotted}{nearest(str(place[-1]), _field_names(model))}"
    return f"{source.where(*place)}: {dotted}: {first['msg']}"


def _field_names(model: type[BaseModel]) -> list[str]:
    names: list[str] = []
    for field_model in {
        model,
        *(m for m in vars(schema).values() if isinstance(m, type) and issubclass(m, schema.Strict)),
    }:
        names += list(field_model.model_fields)
    return sorted(set(names))
