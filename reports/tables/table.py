"""A table of a report: a frame for the CSV, and what a reader sees of it.

Numbers stay numbers in `frame`; `shown` renders them. Knows nothing of HTML.
"""

import math
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any

import pandas as pd

from reports.estimates import Estimate

ABSENT = "–"


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """`name` is the file's, `headers` what a reader sees of each shown column, `empty` the words for no rows at all."""

    name: str
    title: str
    caption: str
    frame: pd.DataFrame
    headers: dict[str, str] = field(default_factory=dict)
    shown: pd.DataFrame | None = None
    empty: str = "Nothing to show."

    @property
    def display(self) -> pd.DataFrame:
        """Texts of the shown columns under their headers."""
        source = self.frame if self.shown is None else self.shown
        columns = list(self.headers) or list(source.columns)
        texts = {self.headers.get(name, name): [show(value) for value in source[name]] for name in columns}
        return pd.DataFrame(texts, dtype=object)

    @property
    def is_empty(self) -> bool:
        """Whether there are no rows."""
        return self.frame.empty

    def csv(self) -> str:
        """All columns, numbers to fifteen digits: what the mean of one value's logarithm keeps of it."""
        return str(self.frame.to_csv(index=False, float_format="%.15g"))


def show(value: Any) -> str:
    """A value as text: four significant digits for a small number, whole numbers with separators, a dash for none."""
    if value is None or value is pd.NA or (isinstance(value, float) and math.isnan(value)):
        return ABSENT
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Integral):
        return f"{int(value):,}"
    if isinstance(value, Real):
        return _number(float(value))
    if isinstance(value, list | tuple):
        return " to ".join(map(show, value)) if len(value) == 2 else ", ".join(map(show, value))
    return str(value)


def with_interval(estimate: Estimate, unit: str = "") -> str:
    """`12,027 [11,900, 12,150] n=5`; one session has no interval and says so by `n=1`."""
    if not estimate.sessions:
        return ABSENT
    interval = f" [{show(estimate.low)}, {show(estimate.high)}]" if estimate.has_interval else ""
    return f"{show(estimate.value)}{unit}{interval} n={estimate.sessions}"


def times(value: float) -> str:
    """A ratio as `4.32x`."""
    return ABSENT if math.isnan(value) else f"{value:.2f}x"


def _number(value: float) -> str:
    size = abs(value)
    if size >= 1000:
        return f"{value:,.0f}"
    if size >= 100:
        return f"{value:.1f}"
    if size >= 1 or value == 0:
        return f"{value:.2f}"
    return f"{value:.3f}" if size >= 0.1 else f"{value:.3g}"
