"""Every claim with its verdict: those that need a run, and those that the published geometry decides alone."""

from typing import Any

import pandas as pd

from reports.held import Held
from reports.material import Material
from reports.tables.table import Table

_HEADERS = {
    "claim": "claim",
    "published": "published",
    "ours": "ours",
    "unit": "unit",
    "relative": "ours / published",
    "verdict": "verdict",
    "interval": "95 % interval of it",
    "bca": "95 % BCa interval of it",
    "sessions": "n",
    "band": "band",
    "reason": "why",
    "source": "where it is printed",
}


def measured_claims(material: Material) -> Table:
    """Ratios first, then absolutes."""
    rows = [_row(held) for held in material.held if held.claim.kind != "computed"]
    has_bca = any(row["bca"] for row in rows)
    return Table(
        name="claims",
        title="All claims that need a run",
        caption="`reproduced` asks for a real run: trained weights, natural acceptance, real transfer, published "
        "lengths, full scale, and an interval inside the band. Anything simulated makes a ratio `indicative` and an "
        "absolute `not comparable`; one session has no interval and is `indicative` at most. From eight sessions on, "
        "the BCa bootstrap's interval stands beside the t-interval and must say the same.",
        frame=pd.DataFrame(rows),
        headers={name: words for name, words in _HEADERS.items() if name != "bca" or has_bca},
    )


def computed_claims(material: Material) -> Table:
    """Pool arithmetic, packet bytes, tile counts: no GPU needed."""
    rows = [_row(held) for held in material.held if held.claim.kind == "computed"]
    keep = ("claim", "published", "ours", "unit", "relative", "band", "verdict", "source")
    return Table(
        name="claims_computed",
        title="Claims computed from the published geometry",
        caption="Worked out from the model's shape and the printed settings, on every build of this page.",
        frame=pd.DataFrame(rows),
        headers={name: _HEADERS[name] for name in keep} | {"ours": "computed", "relative": "computed / published"},
    )


def _row(held: Held) -> dict[str, Any]:
    claim, verdict = held.claim, held.verdict
    where = f" ({claim.cell.suite}, {claim.cell.workload})" if claim.cell else ""
    return {
        "claim": claim.what + where,
        "id": claim.id,
        "kind": claim.kind,
        "published": claim.published,
        "ours": verdict.value,
        "unit": claim.unit,
        "relative": verdict.relative if claim.kind != "absolute" or verdict.outcome != "not comparable" else None,
        "interval": verdict.interval,
        "bca": verdict.bca,
        "sessions": verdict.sessions if claim.kind != "computed" else None,
        "band": f"±{100 * claim.band:.3g} %",
        "verdict": verdict.outcome,
        "reason": verdict.reason,
        "source": claim.source,
    }
