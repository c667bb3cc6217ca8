"""Answers and service levels: scored accuracy runs, and the highest throughput within the levels that was found."""

import json
from pathlib import Path
from typing import Any

import pandas as pd

from reports.claims.claim import published_h200
from reports.material import Material
from reports.tables.table import Table


def accuracy_table(material: Material) -> Table:
    """One row a run of every scored folder below the results; an INVALID score gives its reason and no number."""
    published = published_h200()["e2e_3p1d"]["accuracy"]
    rows: list[dict[str, Any]] = []
    for file in _files(material.results.folder, "accuracy.json"):
        body, place = _read(file), str(file.parent.relative_to(material.results.folder))
        if body.get("verdict") != "VALID":
            why = "; ".join(map(str, body.get("reasons", ()))) or "the file cannot be read"
            rows.append({"where": place, "verdict": "INVALID", "reason": why})
            continue
        for run in body.get("runs", ()):
            accuracy = run.get("accuracy")
            rows.append(
                {
                    "where": place,
                    "run": run.get("run"),
                    "accuracy_pct": 100 * accuracy if accuracy is not None else None,
                    "interval": [100 * x for x in run["ci95"]] if run.get("ci95") else None,
                    "answered": run.get("num_answered"),
                    "unanswered": body.get("unanswered", {}).get("count"),
                    "verdict": "VALID",
                    "reason": "",
                }
            )
    printed = " and ".join(f"{value} %" for value in published["runs"])
    return Table(
        name="accuracy",
        title="Accuracy",
        caption=f"Published for the optimized stack: {printed} of {published['examples']:,} GSM8K questions, "
        f"{published['shots']} examples shown. The interval is Wilson's 95 %.",
        frame=pd.DataFrame(rows),
        empty="No accuracy run has been scored for this testbed; it needs trained weights.",
    )


def operating_points(material: Material) -> Table:
    """The best throughput within the service levels, where a search was made."""
    rows = []
    for file in _files(material.results.folder, "operating_point.json"):
        body = _read(file)
        best = body.get("best") or {}
        rows.append(
            {
                "where": str(file.parent.relative_to(material.results.folder)),
                "levels": "; ".join(map(str, body.get("levels", ()))),
                "largest_holding": body.get("largest_holding"),
                "smallest_breaking": body.get("smallest_breaking"),
                "output_tok_s": best.get("output_tok_s"),
                "at_concurrency": best.get("concurrency"),
                "repeats": best.get("repeats"),
                "confidence": body.get("confidence"),
                "note": "a probe contradicts the order of the others" if body.get("not_monotone") else "",
            }
        )
    return Table(
        name="operating_points",
        title="Operating points",
        caption="The highest concurrency at which every service level holds, and the throughput found there.",
        frame=pd.DataFrame(rows),
        empty="No search for an operating point has been made for this testbed.",
    )


def _files(folder: Path, name: str) -> list[Path]:
    return sorted(file for file in folder.rglob(name) if "attempts" not in file.relative_to(folder).parts)


def _read(file: Path) -> dict[str, Any]:
    try:
        loaded = json.loads(file.read_text())
    except (OSError, ValueError):
        return {}
    return loaded if isinstance(loaded, dict) else {}
