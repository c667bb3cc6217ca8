"""Variants of a ladder's last row, each without the settings and parts that one step of the ladder brought.

Knows nothing of what a setting does. A step whose settings were all changed again by a later step has no variant, since
taking it out would change nothing; the last step has none either, since the row before it is that variant.
"""

from typing import TYPE_CHECKING, Any

from stack.config import EngineConfig, setting_paths, with_settings
from stack.core.errors import ConfigError
from workflows import schema

if TYPE_CHECKING:
    from workflows.catalog import Catalog, CatalogRow


def variants(catalog: "Catalog", name: str) -> list[schema.Row]:
    """One row for each step between the ladder's first row and the one before `name` that can be taken out alone."""
    full = catalog.row(name)
    steps = [entry for entry in catalog.chain(name, "decode")[1:-1] if entry.suite_id == full.suite_id]
    return [row for step in steps if (row := _without(catalog, full, step)) is not None]


def _without(catalog: "Catalog", full: "CatalogRow", step: "CatalogRow") -> schema.Row | None:
    undone: schema.Settings = {}
    for half in ("prefill", "decode"):
        base = step.base_of(half)
        before = catalog.settings(base, half) if base else {}
        after = catalog.settings(step.name, half)
        last = catalog.settings(full.name, half)
        changed = {path for path, value in after.items() if before.get(path, _default(path)) != value}
        kept = {path: before.get(path, _default(path)) for path in sorted(changed) if last.get(path) == after[path]}
        if kept and not _is_valid(half, last | kept):
            return None
        if kept:
            undone[half] = kept
    drops = tuple(step.row.wants)
    if not undone and not drops:
        return None
    return schema.Row(
        id=f"without_{step.row.id}",
        drops=drops,
        question=f"What does the full configuration lose without the step {step.row.id}?",
        base=full.name,
        set=undone,
        sglang=schema.SglangColumn(none="generated for our own engine; the published build has no launch for it"),
        expect=schema.Expect(metric=full.suite.metric, direction="lower"),
    )


def _default(path: str) -> Any:
    return setting_paths().get(path)


def _is_valid(half: str, settings: dict[str, Any]) -> bool:
    try:
        with_settings(EngineConfig(), {"role": half, **settings})
    except ConfigError:
        return False
    return True
