"""The answer on the first screen: did it reproduce, how far, and what is simulated."""

from collections import Counter
from dataclasses import dataclass

from reports.claims import WITHOUT_VALUE, Cell
from reports.held import Held
from reports.material import SHARED_PREFIX, SUITE_METRIC, Material
from reports.tables.evidence import simulated_words

_LAST = "last row over baseline"
_ALL_ON = "output tokens a second, optimized over baseline"
HEADLINES = (
    ("prefill", "fp8_comm_fusion_scheduling", "prefill_only", "Prefill", f"input tokens a second, {_LAST}"),
    ("decode", "dflash2_tuned_moe_dsa_partial", "sp99_9", "Decode", f"output tokens a second, {_LAST}"),
    ("integrated", "optimized", "sp0", "3P1D, 0 % shared", _ALL_ON),
    ("integrated", "optimized", "sp50", "3P1D, 50 % shared", _ALL_ON),
    ("integrated", "optimized", "sp93_75", "3P1D, 93.75 %", _ALL_ON),
)

_SAID = {"ok": "valid", "invalid": "invalid", "failed": "failed"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One headline ratio."""

    title: str
    what: str
    held: Held
    state: str
    """How its sessions stand: measured, failed or not run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Headline:
    """`answer` is one sentence, `notes` what a reader must know before any number."""

    answer: str
    detail: str
    cards: tuple[Card, ...]
    notes: tuple[str, ...]


def headline(material: Material) -> Headline:
    """From the five headline ratios and the labels of the sessions."""
    cards = tuple(_card(material, *one) for one in HEADLINES)
    scales = sorted({session.labels.get("scale", "unknown") for session in material.results.sessions} - {"full"})
    answer, detail = _answer(cards, ", ".join(scales))
    return Headline(answer=answer, detail=detail, cards=cards, notes=tuple(_notes(material)))


def _card(material: Material, suite: str, row: str, workload: str, title: str, what: str) -> Card:
    cell = Cell(suite, row, workload)
    held = material.find(cell, SUITE_METRIC[suite], "ratio", "baseline")
    assert held is not None and SHARED_PREFIX[workload]
    return Card(title=title, what=what, held=held, state=_state(material, cell))


def _state(material: Material, cell: Cell) -> str:
    parts = []
    for name, row in (("that row", cell.row), ("baseline", "baseline")):
        sessions = material.results.of(Cell(cell.suite, row, cell.workload))
        words = Counter(session.outcome for session in sessions)
        absent = material.results.absence(Cell(cell.suite, row, cell.workload))[0]
        none = "no session" if absent == "not run" else absent
        parts.append(f"{name} " + (", ".join(f"{count} {_SAID[word]}" for word, count in words.items()) or none))
    return "; ".join(parts)


def _answer(cards: tuple[Card, ...], scale: str) -> tuple[str, str]:
    outcomes = Counter(card.held.verdict.outcome for card in cards)
    total = len(cards)
    counted = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.most_common())
    detail = f"Of {total} headline ratios: {counted}."
    real = total - sum(outcomes[word] for word in (*WITHOUT_VALUE, "indicative"))
    if outcomes["reproduced"] == total:
        return "Yes: all headline ratios reproduced.", detail
    if real == 0 and outcomes["indicative"]:
        why = f"at another scale ({scale})" if scale else "with simulated parts or single sessions"
        return f"Not answered: this ran {why}, so its ratios are indicative, no evidence.", detail
    if real == 0 and (outcomes["invalid"] or outcomes["failed"]):
        return "Not answered: what was run is invalid or failed, so no headline ratio has a value.", detail
    if real == 0:
        return "Not yet: no headline ratio has been measured.", detail
    if outcomes["reproduced"] and not outcomes["lower"]:
        return "In part: some headline ratios reproduced, none came out lower.", detail
    if outcomes["lower"]:
        return "No: at least one headline ratio came out lower than published.", detail
    if outcomes["higher"]:
        return "Not as printed: what was measured came out higher than published.", detail
    return "Undecided: more sessions would tell.", detail


def _notes(material: Material) -> list[str]:
    results = material.results
    notes = []
    labels = sorted({simulated_words(session.labels) for session in results.sessions} - {""})
    scales = sorted({session.labels.get("scale", "unknown") for session in results.sessions} - {"full"})
    if scales:
        notes.append(
            f"Another scale ({', '.join(scales)}): absolute values cannot be compared with the published ones, "
            "and ratios are indicative."
        )
    if labels:
        words = sorted({word for label in labels for word in label.split(", ")})
        notes.append(f"Simulated or scaled in at least one session: {', '.join(words)}.")
    if superseded := len(results.superseded):
        notes.append(
            f"{superseded} valid session{'s' * (superseded != 1)} ran older code or settings than a newer one of the "
            "same cell, and are in no number."
        )
    digests = {session.status.get("measured_code") for cell in results.cells for session in results.valid(cell)}
    if len(digests) > 1:
        notes.append(
            f"The valid sessions ran {len(digests)} different states of the code: ratios between rows mix code changes "
            "with settings until all rows are run again on one commit."
        )
    if counts := {cell: len(results.valid(cell)) for cell in results.cells if results.valid(cell)}:
        least = min(counts.values())
        notes.append(
            f"Cells with a result have at least {least} valid session{'s' * (least != 1)}"
            + (": no intervals." if least < 2 else ".")
        )
    if redone := [session for session in results.sessions if session.newer]:
        notes.append(
            f"{len(redone)} session{'s' * (len(redone) != 1)} kept the last valid result, since a newer attempt is "
            "none; the reasons are under failures."
        )
    if results.not_ok or results.not_ended:
        notes.append(
            f"{len(results.not_ok)} failed or invalid and {len(results.not_ended)} unfinished sessions are listed "
            "under failures and are in no number."
        )
    return notes
