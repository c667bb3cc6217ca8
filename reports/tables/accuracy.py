"""Scored answers: each run's share, two stacks item by item, and every item.

A score of random weights, or at another scale, is shown with those words beside it and is never held against a
published one.
"""

from typing import Any

import pandas as pd

from reports.claims.claim import published_h200
from reports.json_files import files_named, json_of
from reports.material import Material
from reports.results import Session
from reports.tables.table import Table
from workloads.scoring import MARGIN, compare_folders, read_items
from workloads.spec import SpecError


def accuracy_table(material: Material) -> Table:
    """One row a run of every scored folder below the results; an INVALID score gives its reason and no number."""
    published = published_h200()["e2e_3p1d"]["accuracy"]
    rows: list[dict[str, Any]] = []
    for place, body in _scores(material):
        if body.get("verdict") != "VALID":
            why = "; ".join(map(str, body.get("reasons", ()))) or "the file cannot be read"
            rows.append({"where": place, "verdict": "INVALID", "reason": why})
            continue
        session = _session(material, place)
        for run in body.get("runs", ()):
            accuracy = run.get("accuracy")
            rows.append(
                {
                    "where": place,
                    "run": run.get("run"),
                    "accuracy_pct": 100 * accuracy if accuracy is not None else None,
                    "interval": [100 * x for x in run["ci95"]] if run.get("ci95") else None,
                    "right": run.get("num_correct"),
                    "answered": run.get("num_answered"),
                    "unanswered": body.get("unanswered", {}).get("count"),
                    "accept_length": session.metrics.get("accept_length") if session else None,
                    "verdict": "VALID",
                    "reason": _standing(material, place),
                }
            )
    printed = " and ".join(f"{value} %" for value in published["runs"])
    return Table(
        name="accuracy",
        title="Accuracy",
        caption=f"Published for the optimized stack: {printed} of {published['examples']:,} GSM8K questions, "
        f"{published['shots']} examples shown. The interval is Wilson's 95 %. Unanswered and tokens a verify (natural "
        "acceptance; empty without speculation) count over all runs.",
        frame=pd.DataFrame(rows),
        headers={
            "where": "session",
            "run": "run",
            "accuracy_pct": "right, %",
            "interval": "95 % interval, %",
            "right": "right",
            "answered": "answered",
            "unanswered": "unanswered",
            "accept_length": "tokens a verify",
            "verdict": "verdict",
            "reason": "what it may be held against",
        },
        empty="No accuracy run has been scored for this testbed: np1d run accuracy.",
    )


def accuracy_pairs(material: Material) -> Table:
    """Each accuracy row against the baseline of the same workload and session, item by item."""
    folder = material.results.folder
    valid = {place: body for place, body in _scores(material) if body.get("verdict") == "VALID"}
    rows: list[dict[str, Any]] = []
    for place in valid:
        suite, row, *rest = place.split("/")
        base = "/".join((suite, _BASELINE, *rest))
        if row == _BASELINE or base not in valid:
            continue
        pair = {"row": row, "base": _BASELINE, "workload": rest[0], "session": rest[-1]}
        try:
            rows.append(pair | _paired(compare_folders(folder / base, folder / place)) | _labelled(material, place))
        except (SpecError, OSError, ValueError) as error:
            rows.append(pair | {"verdict": "", "sentence": str(error)})
    return Table(
        name="accuracy_pairs",
        title="Accuracy, item by item",
        caption="The same questions put to both stacks, paired by run and question: exact McNemar test, Newcombe's "
        f"interval of the difference, and whether the row is worse than the baseline by more than {100 * MARGIN:g} "
        "points. Items that one of the two left unanswered are in no pair.",
        frame=pd.DataFrame(rows),
        empty="No row has a scored baseline beside it for this testbed.",
    )


def accuracy_items(material: Material) -> Table:
    """Every item of every scored session: the question's number, the right answer, the given one, what became of it."""
    frames = []
    for place, _ in _scores(material):
        try:
            items = read_items(material.results.folder / place)
        except (OSError, ValueError):
            continue
        frames.append(items.drop(columns="text").assign(where=place))
    frame = pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()
    first = frame.head(_SHOWN_ITEMS)
    return Table(
        name="accuracy_items",
        title="Accuracy, every item",
        caption=f"The first {len(first)} of {len(frame):,} items; the file holds all. The texts of the answers are in "
        "items.csv of each session.",
        frame=frame,
        shown=first,
        headers={name: name.replace("_", " ") for name in _ITEM_COLUMNS} if frames else {},
        empty="No accuracy run has been scored for this testbed: np1d run accuracy.",
    )


_BASELINE = "gsm8k_baseline"
_SHOWN_ITEMS = 24
_ITEM_COLUMNS = ("where", "run", "question", "gold", "answer", "status", "correct", "output_tokens")


def _paired(body: dict[str, Any]) -> dict[str, Any]:
    pairs = body["pairs"]
    return {
        "difference_points": 100 * body["difference"],
        "interval": [100 * x for x in body["ci95"]],
        "mcnemar_p": body["mcnemar_p"],
        "only_baseline_right": pairs["only_first"],
        "only_row_right": pairs["only_second"],
        "pairs": sum(pairs[name] for name in ("both", "only_first", "only_second", "neither")),
        "left_out": pairs["left_out"],
        "verdict": body["verdict"].replace("_", " "),
    }


def _labelled(material: Material, place: str) -> dict[str, Any]:
    standing = _standing(material, place)
    return {"verdict": "not comparable", "sentence": standing} if standing else {"sentence": ""}


def _standing(material: Material, place: str) -> str:
    """Why a session's score says nothing about the published one; an empty text where it may."""
    session = _session(material, place)
    labels = session.labels if session else {}
    if labels.get("weights") == "random":
        return "random weights: the scores are noise, not comparable"
    wrong = [
        f"{name} {labels[name]}" for name in ("scale", "lengths") if labels.get(name) not in (None, "full", "published")
    ]
    return f"not comparable: {', '.join(wrong)}" if wrong else ""


def _scores(material: Material) -> list[tuple[str, dict[str, Any]]]:
    """Place and score of every scored folder; a session that is no result has no score either."""
    folder = material.results.folder
    found: list[tuple[str, dict[str, Any]]] = []
    for file in files_named(folder, "accuracy.json"):
        place = file.parent.relative_to(folder).as_posix()
        session = _session(material, place)
        if session is not None and session.outcome != "ok":
            found.append((place, {"verdict": "INVALID", "reasons": [session.reason]}))
        else:
            found.append((place, json_of(file)))
    return found


def _session(material: Material, place: str) -> Session | None:
    folder = material.results.folder / place
    return next((session for session in material.results.sessions if session.folder == folder), None)
