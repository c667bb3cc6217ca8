"""What everything on loses when one step is taken out. Published rows only add steps: nothing is printed for it."""

import pandas as pd

from reports.claims import Cell
from reports.material import SUITE_METRIC, WORKLOADS, Material
from reports.tables.ladder import VARIANT, ratio_text
from reports.tables.table import Table, with_interval

FULL = {"prefill": "fp8_comm_fusion_scheduling", "decode": "dflash2_tuned_moe_dsa_partial"}


def leave_one_out(material: Material) -> Table:
    """One row a variant `without_<step>` that has a session."""
    numbers, texts = [], []
    for suite, full in FULL.items():
        for workload in WORKLOADS[suite]:
            for row in material.rows(suite, workload):
                if not row.startswith(VARIANT):
                    continue
                cell, whole, metric = Cell(suite, row, workload), Cell(suite, full, workload), SUITE_METRIC[suite]
                ours, over = material.ours(cell, metric), material.ours_over(cell, whole, metric)
                common = {"suite": suite, "step": row.removeprefix(VARIANT)}
                numbers.append(
                    common
                    | {
                        "metric": metric,
                        "sessions": ours.sessions,
                        "without": ours.value,
                        "with_all": material.ours(whole, metric).value,
                        "without_over_all": over.value,
                        "low": over.low,
                        "high": over.high,
                    }
                )
                everything = with_interval(material.ours(whole, metric))
                texts.append(common | {"without": with_interval(ours), "all": everything, "over": ratio_text(over)})
    return Table(
        name="leave_one_out",
        title="Leave one out",
        caption="Everything on but one step of the ladder, over everything on; below 1 the step earns its place.",
        frame=pd.DataFrame(numbers),
        shown=pd.DataFrame(texts),
        headers={
            "step": "step left out",
            "suite": "suite",
            "over": "without it / everything on",
            "without": "without it, tok/s",
            "all": "everything on, tok/s",
        },
        empty="No variant without a step has been run; their rows are called `without_` and the step's name.",
    )
