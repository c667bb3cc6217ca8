"""What each metric means, from the module that computes it."""

import dataclasses

import pandas as pd

from reports.material import Material
from reports.tables.table import Table
from workloads.definitions import METRICS, SCORE_METRICS


def definitions_table(_material: Material) -> Table:
    """Key, unit, meaning and formula of every metric."""
    return Table(
        name="definitions",
        title="Definitions",
        caption="The same definitions, with the rules about windows, origins and percentiles, are in docs/metrics.md.",
        frame=pd.DataFrame([dataclasses.asdict(metric) for metric in (*METRICS, *SCORE_METRICS)]),
    )
