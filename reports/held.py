"""Every claim held against the sessions at hand: the rows that tables, figures and the first screen are made of."""

from collections.abc import Mapping
from dataclasses import dataclass

from reports.claims import Claim, Verdict, claims, judge
from reports.results import Results, Session


@dataclass(frozen=True, slots=True)
class Held:
    """A claim with what our sessions say about it."""

    claim: Claim
    verdict: Verdict


def hold_claims(results: Results) -> list[Held]:
    """All claims, in the order of the catalog."""
    held = []
    for claim in claims():
        verdict = _verdict(claim, results)
        held.append(Held(claim, _absence(claim, results) or verdict if verdict.outcome == "not run" else verdict))
    return held


def _absence(claim: Claim, results: Results) -> Verdict | None:
    """Why a claim has no value: a cell of it cannot run here, or ran without a valid result; None for one that did not
    run. A cell that cannot run is named first, since no session more would help."""
    cells = [cell for cell in (claim.cell, claim.base) if cell]
    for cell in cells:
        outcome, reason = results.absence(cell)
        if outcome in ("not applicable", "not built"):
            return Verdict(outcome, reason)  # type: ignore[arg-type]
    for cell in cells:
        if results.valid(cell):
            if not any(session.metrics.get(claim.metric) for session in results.valid(cell)):
                first = results.valid(cell)[0]
                return Verdict("no value", f"{first.name}: {first.missing.get(claim.metric, f'no {claim.metric}')}")
        elif sessions := results.of(cell):
            first = sessions[0]
            return Verdict(first.outcome, f"{first.name}: {first.first_reason}")  # type: ignore[arg-type]
    return None


def _verdict(claim: Claim, results: Results) -> Verdict:
    if claim.cell is None:
        return judge(claim, ())
    ours = _measured(results, claim, of_base=False)
    base = _measured(results, claim, of_base=True) if claim.base else {}
    labels = [session.labels for session in (*ours.values(), *base.values())]
    if base and set(ours) == set(base):
        blocks = sorted(ours)
        pair = [_value(ours[i], claim) for i in blocks], [_value(base[i], claim) for i in blocks]
        return judge(claim, *pair, labels, is_paired=True)
    values = [_value(session, claim) for session in ours.values()]
    return judge(claim, values, [_value(session, claim) for session in base.values()], labels)


def _measured(results: Results, claim: Claim, *, of_base: bool) -> Mapping[int, Session]:
    """Valid sessions with a usable value, by their block (the session's number)."""
    cell = claim.base if of_base else claim.cell
    assert cell is not None
    return {session.index: session for session in results.valid(cell) if (session.metrics.get(claim.metric) or 0) > 0}


def _value(session: Session, claim: Claim) -> float:
    value = session.metrics[claim.metric]
    assert value is not None
    return value
