"""Where the time of a prefill chunk and of a decode step goes: the rows that were profiled, op by op."""

from typing import Any

import pandas as pd

from reports.json_files import files_named, json_of
from reports.material import Material
from reports.tables.table import Table


def profile_table(material: Material) -> Table:
    """One row an op of every kind of step of every profiled row, the longest first."""
    folder = material.results.folder
    rows: list[dict[str, Any]] = []
    for file in files_named(folder, "profile.json"):
        place = file.parent.relative_to(folder).as_posix()
        for kind, body in json_of(file).get("kinds", {}).items():
            rows += [
                {
                    "where": place,
                    "step": f"{kind}, {body['step_ms']:.4g} ms, mean of {body['steps']}",
                    "op": op["op"],
                    "implementation": op["impl"],
                    "ms_per_step": op["ms_per_step"],
                    "share_pct": 100 * op["share"],
                    "calls_per_step": op["calls_per_step"],
                }
                for op in body["ops"]
            ]
    return Table(
        name="profile",
        title="Time of a step, op by op",
        caption="One instance doing both halves, steps one after the other and without captured graphs, at the lengths "
        "of the row. An op that calls another is counted without it. Served steps overlap with the host's work.",
        frame=pd.DataFrame(rows),
        headers={
            "where": "row",
            "step": "step",
            "op": "op",
            "implementation": "implementation",
            "ms_per_step": "ms a step",
            "share_pct": "share, %",
            "calls_per_step": "calls a step",
        }
        if rows
        else {},
        empty="No row has been profiled on this testbed: np1d profile decode/baseline.",
    )
