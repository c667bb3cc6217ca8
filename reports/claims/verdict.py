"""What a run may say about a claim. The published value is a constant without error; ours is a set of sessions.

A run that simulates something can never say `reproduced`: absolutes become `not comparable`, ratios `indicative`. So
does a single session, which has no interval. Otherwise the 95 % interval of the sessions' mean log ratio decides.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy import stats

from reports.claims.claim import Claim

Outcome = Literal["reproduced", "higher", "lower", "inconclusive", "indicative", "not comparable", "not run", "differs"]

REAL_LABELS: dict[str, tuple[str, ...]] = {
    "weights": ("checkpoint",),
    "acceptance": ("natural", "none"),
    "admission": ("transfer",),
    "lengths": ("published",),
    "scale": ("full",),
}
"""What each label may say for a value to be held against the published one; a missing label counts as simulated."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """`value` is ours; `relative` is ours over the published, `interval` its 95 % interval (None for one session)."""

    outcome: Outcome
    reason: str
    value: float | None = None
    relative: float | None = None
    interval: tuple[float, float] | None = None
    sessions: int = 0


def judge(
    claim: Claim,
    values: Sequence[float],
    base_values: Sequence[float] = (),
    labels: Sequence[Mapping[str, str]] = (),
    *,
    is_paired: bool = False,
) -> Verdict:
    """Hold sessions' values (of the cell, and of the base for a ratio) against a claim.

    `labels` are those of every session that took part. `is_paired` says that values[i] and base_values[i] ran in one
    block. Values must be finite and above 0; a claim that needs no run ignores them.
    """
    if claim.kind == "computed":
        return _computed(claim)
    if not values or (claim.kind == "ratio" and not base_values):
        return Verdict("not run", "no valid session of every cell that the claim needs")
    logs, free = _log_ratios(claim, values, base_values, is_paired)
    relative = math.exp(float(np.mean(logs)))
    value = relative * claim.published
    simulated = _simulated(labels)
    interval = _interval(logs, free)
    if claim.kind == "absolute" and simulated:
        return Verdict("not comparable", simulated, value, None, None, len(values))
    if simulated or interval is None:
        reason = simulated or "one session: no interval"
        return Verdict("indicative", reason, value, relative, interval, len(values))
    return Verdict(*_decide(claim, interval), value, relative, interval, len(values))


def _computed(claim: Claim) -> Verdict:
    assert claim.computed is not None
    relative = claim.computed / claim.published
    if abs(relative - 1) <= claim.band + 1e-12:
        return Verdict("reproduced", "computed from the published geometry", claim.computed, relative)
    return Verdict("differs", "the published geometry gives another value", claim.computed, relative)


def _log_ratios(
    claim: Claim, values: Sequence[float], base_values: Sequence[float], is_paired: bool
) -> tuple[np.ndarray, float | None]:
    """Log of (ours / published) whose mean and spread count, and Welch's degrees of freedom where it is unpaired."""
    ours = np.log(np.asarray(values, dtype=float)) - math.log(claim.published)
    if claim.kind == "absolute":
        return ours, None
    base = np.log(np.asarray(base_values, dtype=float))
    if is_paired and len(base) == len(ours):
        return ours - base, None
    return ours - float(np.mean(base)), float(np.var(base, ddof=1) / len(base)) if len(base) > 1 else math.nan


def _interval(logs: np.ndarray, base_variance: float | None) -> tuple[float, float] | None:
    count = len(logs)
    if count < 2 or (base_variance is not None and math.isnan(base_variance)):
        return None
    own = float(np.var(logs, ddof=1)) / count
    error = math.sqrt(own + (base_variance or 0.0))
    half = float(stats.t.ppf(0.975, count - 1)) * error
    middle = float(np.mean(logs))
    return math.exp(middle - half), math.exp(middle + half)


def _decide(claim: Claim, interval: tuple[float, float]) -> tuple[Outcome, str]:
    low, high = 1 - claim.band, 1 + claim.band
    if low <= interval[0] and interval[1] <= high:
        return "reproduced", f"the interval lies within {claim.band:.1%} of the published value"
    if interval[0] > high:
        return "higher", "the interval lies above the band"
    if interval[1] < low:
        return "lower", "the interval lies below the band"
    return "inconclusive", "the interval and the band overlap in part; more sessions would tell"


def _simulated(labels: Sequence[Mapping[str, str]]) -> str:
    """Why the sessions cannot be held against a published value, or an empty text."""
    if not labels:
        return "nothing says under which conditions it ran"
    wrong = {
        f"{name} {found.get(name, 'unknown')}"
        for found in labels
        for name, real in REAL_LABELS.items()
        if found.get(name) not in real
    }
    return f"simulated or scaled: {', '.join(sorted(wrong))}" if wrong else ""
