"""Service levels: the highest throughput within them that a search found, and what everything on gains there."""

from pathlib import Path
from typing import Any

import pandas as pd

from reports.claims import Cell
from reports.json_files import files_named, json_of
from reports.material import Material
from reports.tables.table import Table

POINT = "_point"
"""Workloads that end so search; without it they are those of the published loads."""


def operating_points(material: Material) -> Table:
    """The best throughput within the service levels, where a search was made."""
    folder = material.results.folder
    found = [(file.parent.relative_to(folder), json_of(file)) for file in files_named(folder, "operating_point.json")]
    return Table(
        name="operating_points",
        title="Operating points",
        caption="The highest throughput at which every service level holds, of the concurrencies that were probed. The "
        "ratio is over the baseline at its own point, the published one over the baseline at the load that the report "
        "drove it at, which it does not print. One probe a concurrency decides alone and is indicative.",
        frame=pd.DataFrame([_row(material, place, body) for place, body in found]),
        headers={
            "where": "row",
            "levels": "levels",
            "at_concurrency": "best at, in flight",
            "output_tok_s": "output tok/s",
            "over": "over baseline",
            "published_over": "published",
            "probed": "probed",
            "smallest_breaking": "smallest that breaks",
            "ended": "ended by",
        }
        if found
        else {},
        empty="No search for an operating point has been made for this testbed: "
        "np1d run integrated --workload sp93_75_point.",
    )


def _row(material: Material, place: Path, body: dict[str, Any]) -> dict[str, object]:
    best = body.get("best") or {}
    over = published = None
    if len(place.parts) == 4 and place.parts[2].endswith(POINT):
        suite, row, workload, _ = place.parts
        cell, base = (Cell(suite, name, workload) for name in (row, "baseline"))
        over = material.ours_over(cell, base, "output_tok_s").value
        at_load = Cell(suite, row, workload.removesuffix(POINT))
        held = material.find(at_load, "output_tok_s", "ratio", "baseline")
        published = held.claim.published if held else None
    noted = ("a probe contradicts the order of the others",) if body.get("not_monotone") else ()
    return {
        "where": place.as_posix(),
        "levels": "; ".join(map(str, body.get("levels", ()))),
        "at_concurrency": best.get("concurrency"),
        "output_tok_s": best.get("output_tok_s"),
        "over": over,
        "published_over": published,
        "probed": ", ".join(str(probe.get("concurrency")) for probe in body.get("probes", ())),
        "largest_holding": body.get("largest_holding"),
        "smallest_breaking": body.get("smallest_breaking"),
        "repeats": best.get("repeats"),
        "confidence": body.get("confidence"),
        "ended": "; ".join(filter(None, (body.get("ended"), *noted))) or "the edge",
    }
