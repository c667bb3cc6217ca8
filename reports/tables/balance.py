"""Do both halves add up? What prefill and decode instances reach alone, against what they reach together.

    output = min(prefill instances x their rate / (prompt x (1 - shared)) x answer, decode instances x their rate)

in output tokens a second, where a rate is one instance's in the row that measures its half alone: input tokens a second
for prefill, output tokens a second for decode. The same formula says which split of the instances would reach most.
"""

import math
from dataclasses import dataclass
from typing import Any

import pandas as pd

from reports.claims import Cell
from reports.estimates import estimate
from reports.material import SHARED_PREFIX, SUITE_METRIC, WORKLOADS, Material
from reports.results import Session, cell_elsewhere
from reports.tables.table import Table, show

_PUBLISHED_SPLIT = (3, 1)


@dataclass(frozen=True, slots=True)
class Halves:
    """Rates of one instance: input and output tokens a second; `suffix` and `answer` are tokens of one request."""

    prefill_rate: float
    decode_rate: float
    suffix: float
    answer: float

    def supply(self, instances: int) -> float:
        """Output tokens a second for which `instances` can prefill."""
        return instances * self.prefill_rate / self.suffix * self.answer

    def output(self, prefill: int, decode: int) -> float:
        """Output tokens a second of a split: the lesser of supply and capacity."""
        return min(self.supply(prefill), decode * self.decode_rate)

    @property
    def prefill_for_one_decode(self) -> float:
        """Prefill instances that feed one decode instance at its rate."""
        return self.decode_rate / self.supply(1)

    def best(self, instances: int) -> tuple[int, int]:
        """The split of so many instances that reaches most; of equals, the one with more prefill instances."""
        splits = ((prefill, instances - prefill) for prefill in range(instances - 1, 0, -1))
        return max(splits, key=lambda split: self.output(*split))


def balance(material: Material) -> Table:
    """One line for each integrated cell and source: published, and ours where both halves were measured alone."""
    frame = pd.DataFrame(balance_rows(material))
    return Table(
        name="balance",
        title="Do both halves add up?",
        caption="Supply is what the prefill instances could feed, capacity what the decode instances could write, both "
        "from one instance's rate in the row that measures that half alone, here or on another testbed with the same "
        "model at the same scale. Together they cannot pass the lesser; a load below the halves' own leaves some of it "
        "unused. P for one D: prefill instances that one decode instance needs. The best split is of as many. "
        "The formula does not know that instances on one machine's cores take from each other: on a CPU testbed only "
        "the published lines say something.",
        frame=frame,
        headers={
            "shared": "shared prefix",
            "row": "row",
            "source": "source",
            "split": "split",
            "supply_tok_s": "prefill supply, tok/s",
            "capacity_tok_s": "decode capacity, tok/s",
            "measured_tok_s": "together, tok/s",
            "share_pct": "of the lesser, %",
            "prefill_for_one_decode": "P for one D",
            "best": "best split",
            "best_tok_s": "its bound, tok/s",
            "alone": "halves alone measured on",
        },
        shown=_shown(frame),
        empty="No integrated session beside both of its halves measured alone.",
    )


def balance_rows(material: Material) -> list[dict[str, Any]]:
    """The numbers of each line."""
    rows: list[dict[str, Any]] = []
    for workload in WORKLOADS["integrated"]:
        for row in material.rows("integrated", workload):
            cell = Cell("integrated", row, workload)
            for session in material.results.valid(cell)[-1:]:
                rows += _lines(material, cell, session)
    return rows


def _lines(material: Material, cell: Cell, session: Session) -> list[dict[str, object]]:
    alone = {half: _cell_alone(name) for half, name in session.plan.get("measured_alone", {}).items()}
    if alone.keys() != {"prefill", "decode"}:
        return []
    conditions, metric = session.plan["conditions"], SUITE_METRIC["integrated"]
    published = {half: material.published(of, SUITE_METRIC[half]) for half, of in alone.items()}
    found = {half: _rate_alone(material, half, of, session) for half, of in alone.items()}
    measured = {half: rate for half, (rate, _) in found.items()}
    places = ", ".join(dict.fromkeys(place for _, place in found.values()))
    sources = (
        ("published", published, _PUBLISHED_SPLIT, conditions["published"], material.published(cell, metric), ""),
        ("ours", measured, _instances(session), conditions["scaled"], material.ours(cell, metric).value, places),
    )
    return [
        {"shared": SHARED_PREFIX[cell.workload], "row": cell.row, "source": source, "alone": where}
        | _line(_halves(rates, shape), split, together)
        for source, rates, split, shape, together, where in sources
        if not any(math.isnan(rate) for rate in rates.values())
    ]


def _cell_alone(name: str) -> Cell:
    suite, row = name.split("/")
    return Cell(suite, row, WORKLOADS[suite][0])


def _line(halves: Halves, split: tuple[int, int], together: float) -> dict[str, object]:
    best = halves.best(sum(split))
    return {
        "prefill_instances": split[0],
        "decode_instances": split[1],
        "prefill_rate_input_tok_s": halves.prefill_rate,
        "decode_rate_output_tok_s": halves.decode_rate,
        "supply_tok_s": halves.supply(split[0]),
        "capacity_tok_s": split[1] * halves.decode_rate,
        "bound_tok_s": halves.output(*split),
        "measured_tok_s": together,
        "share_pct": 100 * together / halves.output(*split),
        "prefill_for_one_decode": halves.prefill_for_one_decode,
        "best_prefill_instances": best[0],
        "best_decode_instances": best[1],
        "best_tok_s": halves.output(*best),
    }


def _halves(rates: dict[str, float], shape: dict[str, Any]) -> Halves:
    suffix = shape["input_len"] * (1 - shape["shared_ratio"])
    return Halves(rates["prefill"], rates["decode"], suffix, shape["output_len"])


def _rate_alone(material: Material, half: str, cell: Cell, together: Session) -> tuple[float, str]:
    """One instance's rate in a row that measures a half alone, and the testbed on which it was measured."""
    results = material.results
    place, sessions = results.testbed, results.valid(cell)
    if not sessions:
        place, sessions = cell_elsewhere(results.folder, cell, together)
    if not sessions:
        return math.nan, ""
    instances = dict(zip(("prefill", "decode"), _instances(sessions[-1]), strict=True))[half]
    return estimate([session.metrics.get(SUITE_METRIC[half]) or 0.0 for session in sessions]).value / instances, place


def _instances(session: Session) -> tuple[int, int]:
    roles = [process["role"] for process in session.plan["processes"]]
    prefill, decode, both = (roles.count(role) for role in ("prefill", "decode", "single"))
    return prefill + both, decode + both


def _shown(frame: pd.DataFrame) -> pd.DataFrame | None:
    if frame.empty:
        return None
    split = frame["prefill_instances"].map(str) + "P" + frame["decode_instances"].map(str) + "D"
    best = frame["best_prefill_instances"].map(str) + "P" + frame["best_decode_instances"].map(str) + "D"
    return frame.assign(split=split, best=best, share_pct=[show(value) for value in frame["share_pct"]])
