"""Two drafters over one cycle: draft, verify, the whole cycle, tokens accepted, time per accepted token."""

import pandas as pd

from reports.claims import Cell
from reports.material import Material
from reports.tables.table import Table, show, with_interval

ROWS = {"mtp718": "MTP, 7 steps, verify 8", "dflash2_block8": "DFlash2, block of 8"}
METRICS = {
    "draft_ms": "draft, ms",
    "verify_ms": "verify, ms",
    "cycle_ms": "full cycle, ms",
    "accept_length": "accepted length, tokens",
    "amortized_ms": "ms per accepted token",
    "output_tok_s": "output tok/s",
}


def drafters_table(material: Material) -> Table:
    """Published beside ours, one line a metric; the last columns are DFlash2 over MTP."""
    mtp, block = (Cell("drafters", row, "sp99_9") for row in ROWS)
    numbers, texts = [], []
    for metric, name in METRICS.items():
        published = [material.published(cell, metric) for cell in (mtp, block)]
        ours = [material.ours(cell, metric) for cell in (mtp, block)]
        ratio = material.find(block, metric, "ratio", mtp.row)
        number = {
            "metric": metric,
            "published_mtp718": published[0],
            "published_dflash2_block8": published[1],
            "published_ratio": published[1] / published[0],
            "ours_mtp718": ours[0].value,
            "ours_dflash2_block8": ours[1].value,
            "ours_ratio": material.ours_over(block, mtp, metric).value,
            "verdict": ratio.verdict.outcome if ratio else "no published value",
        }
        numbers.append(number)
        texts.append(
            {
                "metric": name,
                "mtp": f"{show(published[0])} / {with_interval(ours[0])}",
                "block": f"{show(published[1])} / {with_interval(ours[1])}",
                "ratio": f"{published[1] / published[0]:.3f} / {show(number['ours_ratio'])}",
                "verdict": number["verdict"],
            }
        )
    return Table(
        name="drafters",
        title="Drafters at the same verify width",
        caption="Each cell reads published / ours. Ours are medians over the verify steps inside the measured windows; "
        "the full cycle is the time from one step's end to the next one's.",
        frame=pd.DataFrame(numbers),
        shown=pd.DataFrame(texts),
        headers={
            "metric": "metric",
            "mtp": ROWS["mtp718"],
            "block": ROWS["dflash2_block8"],
            "ratio": "DFlash2 / MTP",
            "verdict": "verdict of the ratio",
        },
    )
