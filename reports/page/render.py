"""Fills the template. Every text is escaped; only the style sheet and our own drawings go in as they are."""

import datetime
from collections.abc import Mapping, Sequence
from importlib import resources

import jinja2
from markupsafe import Markup, escape

from reports.figures.figure import Drawn
from reports.headline import headline
from reports.material import Material
from reports.page.sections import sections
from reports.page.view import card_view
from reports.tables.table import Table


def render(material: Material, tables: Mapping[str, Table], drawn: Sequence[Drawn]) -> str:
    """The page as one HTML text that asks for nothing else."""
    folder = resources.files("reports.page")
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, keep_trailing_newline=True
    )
    environment.filters["breakable"] = _breakable
    template = environment.from_string((folder / "page.html.j2").read_text(encoding="utf-8"))
    head = headline(material)
    sessions = material.results.sessions
    return template.render(
        css=(folder / "style.css").read_text(encoding="utf-8"),
        testbed=material.results.testbed,
        when=_when(material),
        num_valid=sum(session.outcome == "ok" for session in sessions),
        num_sessions=len(sessions),
        headline=head,
        cards=[card_view(card) for card in head.cards],
        sections=sections(material, tables, drawn),
    )


def _breakable(text: str) -> Markup:
    """The text, escaped, which may go on in the next line after an underscore or a slash."""
    return Markup(str(escape(text)).replace("_", "_<wbr>").replace("/", "/<wbr>"))  # noqa: S704 - escaped just here


def _when(material: Material) -> str:
    """The days on which the sessions ran: a page of the same files is the same page."""
    starts = [s.status["started_unix_s"] for s in material.results.sessions if s.status.get("started_unix_s")]
    if not starts:
        return "no day recorded"
    days = [datetime.datetime.fromtimestamp(at, datetime.UTC).strftime("%Y-%m-%d") for at in (min(starts), max(starts))]
    return "measured " + " to ".join(dict.fromkeys(days)) + " (UTC)"
