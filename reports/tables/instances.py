"""What each instance said of itself once it was ready: its memory plan in terms, and the implementation of each op."""

from typing import Any

import pandas as pd

from reports.material import Material
from reports.tables.table import Table

_MIB = 2**20
_TERM = "bytes."


def memory_terms(material: Material) -> Table:
    """Every term of the memory plan of one instance a role in each cell, in MiB."""
    rows = []
    for cell, name, role, told in _instances(material):
        plan = told.get("plan") or {}
        terms = {
            term.removeprefix(_TERM).replace("_", " "): size for term, size in plan.items() if term.startswith(_TERM)
        }
        if not terms:
            continue
        known = sum(terms.values())
        rows.append(
            {"cell": cell, "instance": name, "role": role, "running limit": plan.get("max_running")}
            | {f"{term}, MiB": size / _MIB for term, size in terms.items()}
            | {"sum, MiB": known / _MIB, "budget, MiB": plan.get("budget_bytes", 0) / _MIB}
        )
    return Table(
        name="memory_terms",
        title="Memory plan in terms",
        caption="What each instance planned: the most running requests whose terms fit the budget; the rest becomes "
        "pages.",
        frame=pd.DataFrame(rows),
        empty="No session recorded its instances' plans.",
    )


def kernels_table(material: Material) -> Table:
    """Which implementation each op bound; one column a distinct choice, named by the first cell that made it."""
    columns: dict[str, dict[str, str]] = {}
    for cell, name, _role, told in _instances(material):
        chosen = told.get("impls") or {}
        if chosen and chosen not in columns.values():
            columns[f"{cell} {name}"] = chosen
    ops = sorted({op for chosen in columns.values() for op in chosen})
    rows: list[dict[str, str | None]] = [
        {"op": op, **{name: chosen.get(op) for name, chosen in columns.items()}} for op in ops
    ]
    return Table(
        name="kernels",
        title="Implementations that ran",
        caption="A setting of `auto` takes the first implementation that serves the call; these are those that were "
        "bound. Each column is a distinct choice, named by the first instance that made it.",
        frame=pd.DataFrame(rows),
        empty="No session recorded which implementations its instances bound.",
    )


def _instances(material: Material) -> list[tuple[str, str, str, dict[str, Any]]]:
    """The first instance of each role in each cell's latest valid session."""
    found = []
    for cell in material.results.cells:
        for session in material.results.valid(cell)[-1:]:
            roles = {process["name"]: process["role"] for process in session.plan.get("processes", ())}
            seen: set[str] = set()
            for name, told in session.provenance.get("instances", {}).items():
                role = roles.get(name, "")
                if role not in seen:
                    seen.add(role)
                    found.append((str(cell), name, role, told))
    return found
