"""What each instance said of itself once it was ready: its memory plan in terms, and the implementation of each op."""

from string import ascii_uppercase
from typing import Any

import pandas as pd

from reports.material import Material
from reports.tables.table import Table

_MIB = 2**20
_TERM = "bytes."
_SHOWN = {
    "target KV": "target KV",
    "draft KV": "draft KV",
    "draft rings": "draft KV",
    "index tails": "index",
    "index workspace": "index",
    "empty index rows": "index",
    "convolution windows": "windows",
    "recurrent states": "states",
    "replay ring": "commit",
    "verify snapshots": "commit",
    "idle slots": "idle slots",
    "weights": "outside",
    "graphs": "outside",
    "activations": "outside",
}
"""Term of the plan -> column in which a reader sees it; a term that is not here has a column of its own."""


def memory_terms(material: Material) -> Table:
    """Every term of the memory plan of one instance a role in each cell, in MiB; shown in fewer columns."""
    rows: list[dict[str, Any]] = []
    texts: list[dict[str, Any]] = []
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
        grouped: dict[str, float] = {}
        for term, size in terms.items():
            column = _SHOWN.get(term, term)
            grouped[column] = grouped.get(column, 0.0) + size / _MIB
        whole = {"sum": known / _MIB, "budget": plan.get("budget_bytes", 0) / _MIB}
        texts.append({"cell": cell, "instance": f"{name} {role}", "limit": plan.get("max_running"), **grouped, **whole})
    columns = dict.fromkeys(
        name for name in ("cell", "instance", "limit", *_SHOWN.values(), *(n for row in texts for n in row))
        if name not in ("sum", "budget") and any(name in row for row in texts)
    )  # fmt: skip
    return Table(
        name="memory_terms",
        title="Memory plan in terms",
        caption="What each instance planned, in MiB: the most running requests whose terms fit the budget; the rest "
        "becomes pages. Draft KV are draft pages and rings, index are its tails, workspace and empty rows, windows are "
        "those of convolutions, states are recurrent, commit is the replay ring or the verify snapshots. On a GPU the "
        "sum also holds what lies outside the budget: weights, graphs, activations. The CSV has each term.",
        frame=pd.DataFrame(rows),
        shown=pd.DataFrame(texts),
        headers={name: name for name in (*columns, "sum", "budget")} | {"limit": "running limit"} if texts else {},
        empty="No session recorded its instances' plans.",
    )


def kernels_table(material: Material) -> Table:
    """Which implementation each op bound; one column a distinct choice, called by a letter."""
    columns: dict[str, dict[str, str]] = {}
    for cell, name, _role, told in _instances(material):
        chosen = told.get("impls") or {}
        if chosen and chosen not in columns.values():
            columns[f"{cell} {name}"] = chosen
    ops = sorted({op for chosen in columns.values() for op in chosen})
    letters = dict(zip(columns, ascii_uppercase, strict=False))
    rows: list[dict[str, str | None]] = [
        {"op": op, **{name: chosen.get(op) for name, chosen in columns.items()}} for op in ops
    ]
    first = "; ".join(f"{letter}: {name}" for name, letter in letters.items())
    return Table(
        name="kernels",
        title="Implementations that ran",
        caption="A setting of `auto` takes the first implementation that serves the call; these are those that were "
        f"bound. Each column is a distinct choice, here by the first instance that made it. {first}.",
        frame=pd.DataFrame(rows),
        headers={"op": "op", **letters} if rows else {},
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
