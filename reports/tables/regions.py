"""Kernel time of traced steps by region of a layer, beside the published shares of a verify and another engine's."""

import math
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from reports.claims.claim import published_h200
from reports.json_files import files_named, json_of
from reports.kernel_regions import ATTENTION, INDEXER, MOVEMENT, PRODUCTS, QUANTISATION, REST, regions_ms
from reports.material import Material
from reports.tables.table import Table

FILE = "kernels.json"
_PEER = Path(__file__).parents[1] / "peers" / "sglang_quarter_h200.yaml"
_EMPTY = "No trace of a step was taken in for this testbed: np1d profile ROW --from FILE."


def regions_table(material: Material) -> Table:
    """One row a region of every kind of step of every traced row."""
    rows = [
        {
            "where": where,
            "step": f"{kind}, {body['device_ms']:.4g} ms, mean of {body['steps']}",
            "region": region,
            "ms": ms,
            "share_pct": 100 * ms / sum(found.values()),
            "covered_pct": 100 * body["covered"],
        }
        for where, kind, body, found in _traced(material)
        for region, ms in found.items()
    ]
    return Table(
        name="regions",
        title="Kernel time of a step, by region",
        caption="From traces of steps that ran one after the other and without captured graphs. A share is of the "
        "kernels' time; `covered` is how much of the step kernels ran in. In the rest the device waited for the host, "
        "which it does not in a captured step.",
        frame=pd.DataFrame(rows),
        headers={
            "where": "row",
            "step": "step",
            "region": "region",
            "ms": "ms a step",
            "share_pct": "share, %",
            "covered_pct": "covered, %",
        }
        if rows
        else {},
        empty=_EMPTY,
    )


def verify_shares(material: Material) -> Table:
    """The published shares of a verify's kernel time, and ours in every traced decode step."""
    report = published_h200()
    moe, partial = report["moe_tuning"]["profile"], report["dsa_partial"]["profile"]
    names = (
        ("experts of a verify's kernel time", moe["share_of_verify_kernel_time_pct"]),
        ("up and down products of the experts' time", moe["share_of_moe_in_up_down_gemm_pct"]),
        (
            "attention's partial kernel of sparse attention's time",
            partial["partial_share_of_dsa_verify_kernel_time_pct"],
        ),
    )
    rows = []
    for where, kind, _, found in _traced(material):
        if kind == "prefill":
            continue
        experts = sum(found.get(name, 0.0) for name in (PRODUCTS, MOVEMENT, QUANTISATION))
        sparse = found.get(ATTENTION, 0.0) + found.get(INDEXER, 0.0)
        ours = (
            _pct(experts, sum(found.values())),
            _pct(found.get(PRODUCTS, 0.0), experts),
            _pct(found.get(ATTENTION, 0.0), sparse),
        )
        rows += [
            {"where": where, "share": name, "published_pct": published, "ours_pct": value}
            for (name, published), value in zip(names, ours, strict=True)
        ]
    return Table(
        name="verify_shares",
        title="Shares of a verify's kernel time",
        caption="Published at 768 expert rows on one of four GPUs (about 43, nearly 80 and 58.6 %). Ours: experts are "
        "products, movement with the router, and activation with quantisation, dense layers' included; sparse "
        "attention's time is that of its kernel and the indexer, and one split needs no kernel that combines.",
        frame=pd.DataFrame(rows),
        headers={"where": "row", "share": "share", "published_pct": "published, %", "ours_pct": "ours, %"}
        if rows
        else {},
        empty=_EMPTY,
    )


def chunk_regions(material: Material) -> Table:
    """A traced prompt pass beside the other engine's."""
    peer = _peer()
    theirs = peer["regions_ms"] | {REST: peer["chunk_ms"] - sum(peer["regions_ms"].values())}
    rows = []
    for where, kind, body, found in _traced(material):
        if kind != "prefill":
            continue
        for region in dict.fromkeys((*found, *theirs)):
            rows.append({"where": where, "region": region, "ours_ms": found.get(region, 0.0),
                         "peer_ms": theirs.get(region)})  # fmt: skip
        rows.append({"where": where, "region": "the whole pass", "ours_ms": body["device_ms"],
                     "peer_ms": peer["chunk_ms"]})  # fmt: skip
    return Table(
        name="chunk_regions",
        title="A prompt pass by region, beside another engine's",
        caption=f"{peer['what']}, a pass of {peer['chunk_tokens']:,} tokens, measured by us. Ours: mean of the traced "
        "passes, at the traced run's own chunk size; only equal sizes may be compared.",
        frame=pd.DataFrame(rows),
        headers={"where": "row", "region": "region", "ours_ms": "ours, ms", "peer_ms": "SGLang 0.5.20, ms"}
        if rows
        else {},
        empty=_EMPTY,
    )


def _traced(material: Material) -> list[tuple[str, str, dict[str, Any], dict[str, float]]]:
    """(row, kind of step, what the trace says of it, milliseconds by region)."""
    folder = material.results.folder
    found = []
    for file in files_named(folder, FILE):
        body = json_of(file)
        for kind, one in body.get("profile", {}).items():
            where = file.parent.relative_to(folder).as_posix()
            found.append((where, kind, one, regions_ms(one["kernels"], body.get("impls", {}))))
    return found


def _pct(part: float, whole: float) -> float:
    return 100 * part / whole if whole else math.nan


@cache
def _peer() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(_PEER.read_text())
    return loaded
