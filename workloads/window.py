"""Which moments of a pass count, and how much traffic fell into them.

The window runs from the first measured request's sending to the last measured request's last token. Token events
decide membership, not requests: a warm-up request that still streams inside the window counts with the tokens it
brought there.
"""

import dataclasses

import numpy as np
import pandas as pd


@dataclasses.dataclass(frozen=True, slots=True)
class Window:
    """A span of a pass, seconds since its t0."""

    start_s: float
    end_s: float

    @property
    def duration_s(self) -> float:
        """Its length; zero for a window in which nothing happened."""
        return max(0.0, self.end_s - self.start_s)

    def holds(self, times_s: np.ndarray) -> np.ndarray:
        """Which times fall into it, both ends included."""
        return (times_s >= self.start_s) & (times_s <= self.end_s)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TokenCount:
    """Output tokens of the answers that ended well, by place."""

    before: int
    inside: int
    after: int


def pass_window(requests: pd.DataFrame) -> Window:
    """The window of one pass's requests (all phases)."""
    measured = requests[requests["phase"] == "measured"]
    if measured.empty:
        return Window(0.0, 0.0)
    ends = measured["last_token_s"].fillna(measured["end_s"])
    return Window(float(measured["intended_start_s"].min()), float(ends.max()))


def steady_window(requests: pd.DataFrame, declared: int) -> Window | None:
    """From the moment `declared` requests are in flight until the last moment they are; None when that never is."""
    times, level = in_flight(requests)
    full = np.flatnonzero(level >= declared)
    return None if full.size == 0 else Window(float(times[full[0]]), float(times[min(full[-1] + 1, times.size - 1)]))


def in_flight(requests: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Times [N] of changes and the number in flight from each on [N]."""
    starts = requests["start_s"].to_numpy(dtype=float)
    ends = requests["end_s"].to_numpy(dtype=float)
    times = np.concatenate([starts, ends])
    steps = np.concatenate([np.ones(starts.size, dtype=int), -np.ones(ends.size, dtype=int)])
    order = np.lexsort((steps, times))  # at equal times an end comes first
    return times[order], np.cumsum(steps[order])


def concurrency_share(requests: pd.DataFrame, window: Window, declared: int) -> float:
    """Share of the window in which at least `declared` requests are in flight."""
    if window.duration_s == 0:
        return 0.0
    times, level = in_flight(requests)
    starts = np.clip(times, window.start_s, window.end_s)
    ends = np.clip(np.append(times[1:], window.end_s), window.start_s, window.end_s)
    return float(np.sum((ends - starts)[level >= declared]) / window.duration_s)


def count_tokens(requests: pd.DataFrame, chunks: pd.DataFrame, window: Window) -> TokenCount | None:
    """Output tokens of one pass before, inside and after the window.

    None when a chunk's tokens are unknown and its request crosses the window's edge.
    """
    ok = requests[requests["ok"]]
    known = chunks.groupby("request_index")["num_tokens"].apply(lambda n: bool(n.notna().all()))
    has_counts = ok["request_index"].map(known).fillna(False).to_numpy(dtype=bool)
    events = chunks[chunks["request_index"].isin(ok["request_index"][has_counts])]
    times, counts = events["t_s"].to_numpy(dtype=float), events["num_tokens"].to_numpy(dtype=np.int64)
    whole = ok[~has_counts]
    first, last = whole["first_token_s"].to_numpy(dtype=float), whole["last_token_s"].to_numpy(dtype=float)
    if not np.array_equal(_place(first, window), _place(last, window)):
        return None
    places = np.concatenate([_place(times, window), _place(last, window)])
    counts = np.concatenate([counts, whole["output_tokens"].fillna(0).to_numpy(dtype=np.int64)])
    before, inside, after = (int(counts[places == place].sum()) for place in (-1, 0, 1))
    return TokenCount(before=before, inside=inside, after=after)


def _place(times_s: np.ndarray, window: Window) -> np.ndarray:
    return np.where(times_s < window.start_s, -1, np.where(times_s > window.end_s, 1, 0))
