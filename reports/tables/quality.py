"""Service levels: the highest throughput within them that a search found."""

import pandas as pd

from reports.json_files import files_named, json_of
from reports.material import Material
from reports.tables.table import Table


def operating_points(material: Material) -> Table:
    """The best throughput within the service levels, where a search was made."""
    rows = []
    for file in files_named(material.results.folder, "operating_point.json"):
        body = json_of(file)
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
