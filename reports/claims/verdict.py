"""What a run may say about a claim. The published value is a constant without error; ours is a set of sessions.

A run that simulates something can never say `reproduced`: absolutes become `not comparable`, ratios `indicative`. So
do fewer than five sessions, of which a single one has no interval. Otherwise the 95 % t-interval of the sessions' mean
log ratio decides; from eight sessions on, the bootstrap's must say the same.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy import stats

from reports.bootstrap import bca_interval
from reports.claims.claim import Claim

Outcome = Literal[
    "reproduced", "higher", "lower", "inconclusive", "indicative", "not comparable", "not run", "not applicable",
    "not built", "invalid", "failed", "no value", "differs",
]  # fmt: skip
"""`not applicable` and `not built` are said of rows that cannot run where the sessions ran, `invalid`, `failed` and
`no value` of rows that ran and have none; never by `judge`."""
WITHOUT_VALUE: tuple[Outcome, ...] = ("not run", "not applicable", "not built", "invalid", "failed", "no value")
"""What is said of a claim for which there is no value of ours."""

DECIDING_SESSIONS = 5
"""Fewer sessions of a cell are a quick look: their interval is shown, and they decide nothing."""

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
    """`value` is ours; `relative` is ours over the published, `interval` its 95 % t-interval (None for one session) and
    `bca` that of the bootstrap (None for fewer than eight)."""

    outcome: Outcome
    reason: str
    value: float | None = None
    relative: float | None = None
    interval: tuple[float, float] | None = None
    sessions: int = 0
    bca: tuple[float, float] | None = None


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
    logs, base = _log_ratios(claim, values, base_values, is_paired)
    relative = math.exp(float(np.mean(logs)))
    value = relative * claim.published
    simulated = _simulated(labels)
    interval, bca = _interval(logs, base), _bca(logs, base)
    if claim.kind == "absolute" and simulated:
        return Verdict("not comparable", simulated, value, None, None, len(values))
    few = _too_few(min(len(values), len(base_values) or len(values)))
    if simulated or few:
        return Verdict("indicative", simulated or few, value, relative, interval, len(values), bca)
    assert interval is not None
    return Verdict(*_decide(claim, interval, bca), value, relative, interval, len(values), bca)


def _computed(claim: Claim) -> Verdict:
    assert claim.computed is not None
    relative = claim.computed / claim.published
    if abs(relative - 1) <= claim.band + 1e-12:
        return Verdict("reproduced", "computed from the published geometry", claim.computed, relative)
    return Verdict("differs", "the published geometry gives another value", claim.computed, relative)


def _log_ratios(
    claim: Claim, values: Sequence[float], base_values: Sequence[float], is_paired: bool
) -> tuple[np.ndarray, np.ndarray | None]:
    """Logs of ours over published, whose mean counts; of an unpaired ratio also the base's, whose spread counts."""
    ours = np.log(np.asarray(values, dtype=float)) - math.log(claim.published)
    if claim.kind == "absolute":
        return ours, None
    base = np.log(np.asarray(base_values, dtype=float))
    if is_paired and len(base) == len(ours):
        return ours - base, None
    return ours - float(np.mean(base)), base


def _interval(logs: np.ndarray, base: np.ndarray | None) -> tuple[float, float] | None:
    """95 % t-interval of the mean: Welch's where a base has a spread of its own."""
    samples = [logs] if base is None else [logs, base]
    if min(map(len, samples)) < 2:
        return None
    errors = [float(np.var(sample, ddof=1)) / len(sample) for sample in samples]
    squares = sum(error**2 / (len(sample) - 1) for error, sample in zip(errors, samples, strict=True))
    freedom = sum(errors) ** 2 / squares if squares else len(logs) - 1
    half = float(stats.t.ppf(0.975, freedom)) * math.sqrt(sum(errors))
    middle = float(np.mean(logs))
    return math.exp(middle - half), math.exp(middle + half)


def _bca(logs: np.ndarray, base: np.ndarray | None) -> tuple[float, float] | None:
    """The same by the bootstrap."""
    found = bca_interval(list(logs), None if base is None else list(base - np.mean(base)))
    return found and (math.exp(found[0]), math.exp(found[1]))


def _too_few(sessions: int) -> str:
    if sessions >= DECIDING_SESSIONS:
        return ""
    return (
        "one session: no interval"
        if sessions == 1
        else f"{sessions} sessions are a quick look; {DECIDING_SESSIONS} decide"
    )


def _decide(claim: Claim, interval: tuple[float, float], bca: tuple[float, float] | None) -> tuple[Outcome, str]:
    bounds = (*interval, *(bca or ()))
    words, verb = ("both intervals", "") if bca else ("the interval", "s")
    if 1 - claim.band <= min(bounds) and max(bounds) <= 1 + claim.band:
        return "reproduced", f"{words} lie{verb} within {claim.band:.1%} of the published value"
    if min(bounds) > 1 + claim.band:
        return "higher", f"{words} lie{verb} above the band"
    if max(bounds) < 1 - claim.band:
        return "lower", f"{words} lie{verb} below the band"
    return "inconclusive", f"{words} and the band overlap in part; more sessions would tell"


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
