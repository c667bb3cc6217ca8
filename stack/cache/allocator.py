"""Hands out page and slot numbers in ascending runs, so that neighbours travel as one descriptor.

Pure integers; knows nothing of what lies behind a number. Numbers run from 1: 0 is the sink and is never handed out.
Invariants: a number is free or used, never both; free extents are disjoint, sorted and never adjacent.
"""

from bisect import bisect_left
from collections.abc import Iterable

_EXTENTS_TO_TRY = 32
"""Extents looked at for one that fits a whole allocation before it is cut over several."""


class RunAllocator:
    """Numbers 1 to `total`. Not thread-safe: the scheduler's thread owns it."""

    def __init__(self, total: int, name: str = "page") -> None:
        self.total = total
        self._name = name
        self._starts = [1] if total else []
        self._lengths = {1: total} if total else {}
        self._is_used = bytearray(total + 1)
        self._num_free = total

    @property
    def num_free(self) -> int:
        """Numbers that `allocate` can still give."""
        return self._num_free

    @property
    def num_used(self) -> int:
        """Numbers given and not returned."""
        return self.total - self._num_free

    def is_used(self, number: int) -> bool:
        """Whether `number` is handed out."""
        return bool(self._is_used[number])

    def allocate(self, count: int) -> list[int] | None:
        """`count` numbers in ascending order, neighbours where possible; None (and no change) when too few are free."""
        if count > self._num_free:
            return None
        taken: list[int] = []
        whole = self._extent_that_fits(count)
        while len(taken) < count:
            taken.extend(self._cut(whole, count - len(taken)))
            whole = 0
        for number in taken:
            self._is_used[number] = 1
        self._num_free -= count
        return taken

    def free(self, numbers: Iterable[int]) -> None:
        """Take numbers back. A number that is not handed out is a bug and raises AssertionError before any change."""
        ordered = sorted(numbers)
        previous = 0
        for number in ordered:
            is_ours = previous < number <= self.total and self._is_used[number]
            assert is_ours, f"{self._name} {number} is freed but was not handed out"
            previous = number
        for start, length in merged_runs(ordered):
            self._is_used[start : start + length] = bytes(length)
            self._insert(start, length)
        self._num_free += len(ordered)

    def _extent_that_fits(self, count: int) -> int:
        for position, start in enumerate(self._starts[:_EXTENTS_TO_TRY]):
            if self._lengths[start] >= count:
                return position
        return 0

    def _cut(self, position: int, count: int) -> range:
        start = self._starts[position]
        length = self._lengths.pop(start)
        taken = min(count, length)
        if taken == length:
            del self._starts[position]
        else:
            self._starts[position] = start + taken
            self._lengths[start + taken] = length - taken
        return range(start, start + taken)

    def _insert(self, start: int, length: int) -> None:
        position = bisect_left(self._starts, start)
        if position < len(self._starts) and self._starts[position] == start + length:
            length += self._lengths.pop(start + length)
            del self._starts[position]
        before = self._starts[position - 1] if position else 0
        if before and before + self._lengths[before] == start:
            self._lengths[before] += length
        else:
            self._starts.insert(position, start)
            self._lengths[start] = length


def merged_runs(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """(first, count) of each stretch of consecutive numbers, in the order given."""
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and number == runs[-1][0] + runs[-1][1]:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((number, 1))
    return runs
