"""Which table and figure stands where on the page, with the sentences between them."""

import shlex
from collections.abc import Mapping, Sequence

from reports.figures.figure import Drawn
from reports.material import Material
from reports.page.view import FigureView, LogView, Part, Section, TableView
from reports.results import Session
from reports.tables.table import Table

_NUMBERS = "Figures carry the numbers that they have in the published report."
_METHODS = [
    "A session is one start of all servers: launch, readiness, cache flush and priming, warm-up, measured passes, end. "
    "Sessions are the sample; passes of one session are never counted as repetitions. A session's value is a ratio of "
    "sums over its passes, or a statistic over all its measured requests.",
    "Validity is judged before any metric. An invalid or failed session has no value anywhere on this page.",
    "Means over sessions are geometric, intervals are 95 % t-intervals of the logarithms; a ratio of two rows is "
    "paired when both ran in the same blocks. A published value is a constant without error: `reproduced` asks that "
    "the whole interval of ours over published lies inside the claim's band.",
    "From eight sessions on, a bootstrap interval (BCa, 9,999 seeded resamples of the logarithms) is given beside the "
    "t-interval, and a verdict must hold by both. It is no replacement: of normal noise it holds the truth in 88 of "
    "100 cases at 8 sessions and in 92 at 20, the t-interval in 95.",
    "Every metric is defined below and in docs/metrics.md.",
]


def sections(material: Material, tables: Mapping[str, Table], drawn: Sequence[Drawn]) -> list[Section]:
    """The page from top to bottom."""
    figures = {one.spec.name: FigureView(number, one) for number, one in enumerate(drawn, start=1)}

    def parts(*names: str) -> list[Part]:
        found = []
        for name in names:
            if name.startswith("figure:"):
                found.append(Part("figure", figure=figures[name.removeprefix("figure:")]))
            else:
                found.append(Part("table", table=TableView(tables[name])))
        return found

    worse = Part("callout", table=TableView(tables["worsened"]))
    failures = [*parts("failures"), Part("logs", logs=[_log(session) for session in material.results.not_ok])]
    commands = Part("logs", logs=[_commands(session) for session in material.results.sessions if session.provenance])
    return [
        Section("worse", "What gets worse", [], [worse]),
        Section("decode", "Decode", [_NUMBERS], parts("ladder_decode", "values_decode", "batches", "figure:decode",
                                                "figure:prefix_sharing", "leave_one_out", "further_points")),
        Section("prefill", "Prefill", [], parts("ladder_prefill", "values_prefill", "figure:prefill", "figure:packet")),
        Section("integrated", "3P1D", [], parts("figure:topology", "integrated_throughput", "integrated_latency",
                                                "integrated_halves", "figure:integrated", "balance",
                                                "integrated_checks", "operating_points")),
        Section("accuracy", "Accuracy", [], parts("accuracy", "accuracy_pairs", "accuracy_items")),
        Section("drafters", "Drafters", [], parts("drafters", "acceptance_by_context", "figure:cycle",
                                                "verify_shares", "figure:tile_loop")),
        Section("profile", "Where a step's time goes", [], parts("micro", "chunk_regions", "regions", "profile")),
        Section("settings", "Settings and mechanisms", [], parts("settings_prefill", "settings_decode", "kernels",
                                                                 "mechanisms")),
        Section("memory", "Memory", [], parts("memory", "memory_terms", "memory_published")),
        Section("claims", "Claims", [], parts("claims", "claims_computed")),
        Section("failures", "Sessions, validity, failures", [], [*failures, *parts("sessions", "levels", "validity")]),
        Section("provenance", "Provenance", [], [*parts("provenance", "versions", "orders"), commands]),
        Section("methods", "Methods", _METHODS, parts("definitions")),
    ]  # fmt: skip


def _log(session: Session) -> LogView:
    blocks = [
        (f"end of {name}.log", "\n".join(lines)) for name, lines in session.status.get("log_tail", {}).items() if lines
    ]
    if reasons := session.measured.get("validity", {}).get("reasons"):
        blocks.insert(0, ("reasons", "\n".join(map(str, reasons))))
    return LogView(f"{session.name}: {session.outcome}, {session.reason}", blocks or [("log", "nothing was logged")])


def _commands(session: Session) -> LogView:
    blocks = []
    for name, command in session.provenance.get("commands", {}).items():
        environment = [f"{key}={shlex.quote(str(value))}" for key, value in command.get("env", {}).items()]
        blocks.append((name, " ".join([*environment, *map(_quote, command.get("argv", ()))])))
    changed = session.provenance.get("code", {}).get("diff_files", [])
    if changed:
        blocks.append(("files that differed from the commit", "\n".join(changed)))
    return LogView(f"Commands of {session.name}", blocks)


def _quote(word: object) -> str:
    text = str(word)
    return text if text.startswith("{") or "{port" in text or "{dir}" in text else shlex.quote(text)
