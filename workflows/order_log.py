"""Keeps beside the results in which order sessions were asked for, and the seed that drew it.

One line of `orders.jsonl` for each selection that differs from the one before it. When a session really began is in its
`status.json`; a session that was there already, or an interrupt, makes gaps in the order but never another one.
"""

import json
from pathlib import Path

from workflows.targets import Selection

ROOT = Path(__file__).resolve().parent.parent
ORDERS = "orders.jsonl"


def note_order(selection: Selection, results: Path = ROOT / "results") -> None:
    """Append the selection's order. A line that a killed run cut short is left as it is."""
    start = f"{selection.folder}/"
    order = [folder.removeprefix(start) for folder in selection.folders]
    line = json.dumps({"seed": selection.seed, "sessions": selection.sessions, "order": order})
    path = results / selection.folder / ORDERS
    known = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    if order and (not known or known[-1] != line):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as log:
            log.write(f"{line}\n")
