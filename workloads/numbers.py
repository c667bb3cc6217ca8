"""Reads the answer out of a worked solution: signs, thousands, decimals, money, and where the answer stands.

The answer follows "####" where the text has that mark (the first one: what comes after belongs to a question that the
model made up), and is the last number otherwise. Numbers are compared as decimals, so 18, 18.0 and $18.00 are equal.
"""

import re
from collections.abc import Sequence
from decimal import Decimal

MARK = "####"
_THOUSANDS = ",\u00a0\u202f"
_NUMBER = re.compile(
    rf"""(?P<sign>(?<![\w.)\]])[-+\u2212\u2013](?=[$\u20ac\u00a3]?\s?\.?\d))?
         [$\u20ac\u00a3]?\s?(?P<inner>(?<=[$\u20ac\u00a3])[-\u2212])?
         (?P<whole>\d{{1,3}}(?:[{_THOUSANDS}]\d{{3}})+(?!\d)|\d+)?
         (?P<part>\.\d+)?(?P<power>[eE][-+]?\d+(?![\w.]))?""",
    re.VERBOSE,
)


def cut_at_stops(text: str, stops: Sequence[str]) -> str:
    """The text up to the first stop string, whether or not the server cut it already."""
    ends = [place for stop in stops if (place := text.find(stop)) >= 0]
    return text[: min(ends)] if ends else text


def answer_of(text: str) -> Decimal | None:
    """The number a solution gives, or None where it gives none."""
    before, mark, after = text.partition(MARK)
    if mark:
        line = after.strip().split("\n", 1)[0]
        marked = numbers_in(line)
        if marked:
            return marked[0]
    found = numbers_in(before)
    return found[-1] if found else None


def last_number(text: str) -> Decimal | None:
    """The last number of a text: the rule of the published evaluation client."""
    found = numbers_in(text)
    return found[-1] if found else None


def numbers_in(text: str) -> list[Decimal]:
    """All numbers, in order."""
    found = []
    for match in _NUMBER.finditer(text):
        whole, part = match["whole"] or "", match["part"] or ""
        if not whole and not part:
            continue
        digits = "".join(c for c in whole if c not in _THOUSANDS) or "0"
        is_negative = (match["sign"] or match["inner"] or "+") not in ("+",)
        found.append(Decimal(f"{'-' if is_negative else ''}{digits}{part}{match['power'] or ''}"))
    return found
