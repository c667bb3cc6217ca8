"""What the template shows: tables as rows of texts, figures as SVG, logs as blocks. Plain values, nothing computed."""

import base64
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from reports.claims import WITHOUT_VALUE
from reports.figures.figure import Drawn
from reports.headline import Card
from reports.tables.table import ABSENT, Table

WIDE_COLUMNS = 5
"""From so many columns on, a table is set as one block a row on a phone."""
NOTED_COLUMNS = 8
"""From so many columns on, long texts stand below the table, each once, under a number."""
LONG_TEXT = 34
PARAGRAPH = 60
"""A text of such length that stands in several rows goes below a table of any width."""
_NUMBER = re.compile(r"^[-±]?[\d,.]+( ?[x%s]| → [\d,.]+)?$|^–$")
_VERDICTS = ("verdict", "outcome", "ended", "verdict of the ratio")


@dataclass(frozen=True, slots=True)
class CellView:
    """One field of a table."""

    text: str
    is_number: bool
    is_verdict: bool
    is_long: bool
    label: str
    """Its column's header."""
    note: int = 0
    """Number of the note below the table that holds the text; 0 where the text stands here."""


@dataclass(frozen=True, slots=True)
class TableView:
    """A table ready for the template."""

    table: Table

    def __getattr__(self, name: str) -> Any:
        return getattr(self.table, name)

    @property
    def columns(self) -> list[str]:
        """Headers."""
        return list(self.table.display.columns)

    @property
    def num_rows(self) -> int:
        """How many rows."""
        return len(self.table.frame)

    @property
    def is_wide(self) -> bool:
        """Whether a phone shows it as blocks."""
        texts = (text for row in self.table.display.to_numpy().tolist() for text in row)
        is_wordy = len(self.columns) == WIDE_COLUMNS - 1 and any(len(text) > LONG_TEXT for text in texts)
        return is_wordy or len(self.columns) >= WIDE_COLUMNS

    @property
    def notes(self) -> list[str]:
        """Texts that stand below the table, each once, in the order in which they appear."""
        display = self.table.display
        is_crowded = len(display.columns) >= NOTED_COLUMNS
        counts = Counter(text for row in display.iloc[:, 1:].to_numpy().tolist() for text in row)
        return [
            text
            for text, count in counts.items()
            if (is_crowded and len(text) > LONG_TEXT) or (count > 1 and len(text) > PARAGRAPH)
        ]

    @property
    def rows(self) -> Iterator[list[CellView]]:
        """Texts, and how to set them."""
        display = self.table.display
        numbers = {text: number for number, text in enumerate(self.notes, 1)}
        for row in display.itertuples(index=False):
            yield [_cell(name, text, numbers) for name, text in zip(display.columns, row, strict=True)]

    @property
    def csv_uri(self) -> str:
        """The CSV as a data URI."""
        return "data:text/csv;charset=utf-8;base64," + base64.b64encode(self.table.csv().encode()).decode()


def _cell(name: str, text: str, notes: dict[str, int]) -> CellView:
    is_verdict = name in _VERDICTS and text not in ("", ABSENT)
    note = notes.get(text, 0)
    is_long = len(text) > LONG_TEXT and not note
    return CellView(text, bool(_NUMBER.match(text)), is_verdict, is_long, name, note)


@dataclass(frozen=True, slots=True)
class FigureView:
    """A figure ready for the template."""

    number: int
    drawn: Drawn

    @property
    def name(self) -> str:
        """File name without ending."""
        return self.drawn.spec.name

    @property
    def title(self) -> str:
        """What stands above it."""
        return self.drawn.spec.title

    @property
    def caption(self) -> str:
        """What stands below it."""
        return self.drawn.spec.caption

    @property
    def svg(self) -> str:
        """The drawing, empty without one."""
        return self.drawn.svg

    @property
    def absent(self) -> str:
        """Why there is no drawing."""
        return self.drawn.absent


@dataclass(frozen=True, slots=True)
class LogView:
    """Texts behind a line that opens."""

    title: str
    blocks: list[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Part:
    """One thing in a section; `kind` says which field is set."""

    kind: str
    table: TableView | None = None
    figure: FigureView | None = None
    logs: list[LogView] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Section:
    """A heading, sentences, parts."""

    id: str
    title: str
    text: list[str]
    parts: list[Part]


def card_view(card: Card) -> dict[str, str]:
    """A headline ratio as texts."""
    claim, verdict = card.held.claim, card.held.verdict
    interval = ""
    if verdict.interval:
        low, high = (claim.published * bound for bound in verdict.interval)
        interval = f" [{low:.2f}, {high:.2f}]"
    if verdict.sessions:
        interval += f", n={verdict.sessions}"
    return {
        "title": card.title,
        "what": card.what[0].upper() + card.what[1:],
        "published": f"{claim.published:.2f}x",
        "ours": ABSENT if verdict.value is None else f"{verdict.value:.2f}x",
        "interval": interval,
        "outcome": verdict.outcome,
        "why": verdict.reason.rstrip(".") if verdict.outcome in WITHOUT_VALUE and verdict.outcome != "not run" else "",
        "state": "Sessions: " + card.state,
    }
