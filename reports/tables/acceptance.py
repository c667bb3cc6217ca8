"""Acceptance against context: what verifies committed for requests of each prompt length, in every valid session.

A draft that loses its window, its rotary positions or its target features at long contexts accepts less there, so for
natural acceptance the column must be flat. Forced acceptance is flat whatever the draft does, and says so.
"""

from typing import Any

import pandas as pd

from reports.material import Material
from reports.results import Session
from reports.tables.table import Table
from workloads.records import REQUESTS_FILE, read_requests


def acceptance_by_context(material: Material) -> Table:
    """One line a cell and prompt length: requests, verifies, tokens a verify, and steps a token."""
    groups: dict[tuple[str, str, str, int], list[pd.DataFrame]] = {}
    for session in material.results.sessions:
        for length, requests in _by_length(session):
            key = (str(session.cell), session.labels.get("acceptance", ""), session.labels.get("weights", ""), length)
            groups.setdefault(key, []).append(requests)
    rows = [_row(key, pd.concat(frames)) for key, frames in groups.items()]
    frame = pd.DataFrame(rows)
    if rows:
        frame = frame.sort_values(["prompt_tokens", "cell"], kind="stable", ignore_index=True)
    return Table(
        name="acceptance_by_context",
        title="Acceptance against context length",
        caption="Decoded tokens over verify steps of all measured requests with prompts of one length; the first token "
        "is prefill's. The quartiles are over requests. Forced acceptance does not depend on the draft, so only "
        "natural acceptance says whether a draft survives long contexts.",
        frame=frame,
        headers={
            "cell": "cell",
            "acceptance": "acceptance",
            "weights": "weights",
            "prompt_tokens": "prompt, tokens",
            "requests": "requests",
            "verifies": "verifies",
            "tokens_a_verify": "tokens / verify",
            "quartiles": "its quartiles",
            "steps_a_token": "steps / token",
        },
        empty="No valid session of this testbed speculated.",
    )


def _by_length(session: Session) -> list[tuple[int, pd.DataFrame]]:
    file = session.folder / REQUESTS_FILE
    if session.outcome != "ok" or session.labels.get("acceptance") in (None, "none") or not file.exists():
        return []
    requests = read_requests(session.folder)
    told = requests[(requests.phase == "measured") & requests.ok & (requests.num_verify > 0)]
    return [(int(rows.input_tokens.iloc[0]), rows) for _, rows in told.groupby("input_tokens")]


def _row(key: tuple[str, str, str, int], requests: pd.DataFrame) -> dict[str, Any]:
    cell, acceptance, weights, length = key
    decoded = requests.output_tokens - 1
    per_request = decoded / requests.num_verify
    verifies = int(requests.num_verify.sum())
    return {
        "cell": cell,
        "acceptance": acceptance,
        "weights": weights,
        "prompt_tokens": length,
        "requests": len(requests),
        "verifies": verifies,
        "tokens_a_verify": float(decoded.sum()) / verifies,
        "quartiles": [float(per_request.quantile(q)) for q in (0.25, 0.75)],
        "steps_a_token": verifies / float(decoded.sum()),
    }
