"""What each metric means, for one request and for a run. The page `docs/metrics.md` is written from this module.

Times are seconds. A value that cannot be given is None; `Given` carries the reason. Nothing here knows of files.
"""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np


@dataclasses.dataclass(frozen=True, slots=True)
class Given:
    """A value, or the reason why there is none: exactly one of them."""

    value: float | None
    reason: str | None = None

    def __post_init__(self) -> None:
        assert (self.value is None) != (self.reason is None)


@dataclasses.dataclass(frozen=True, slots=True)
class Metric:
    """A key of metrics.json: what it means, how it is computed."""

    key: str
    unit: str
    meaning: str
    formula: str


def ttft_s(*, origin_s: float, first_token_s: float | None) -> float | None:
    """Time to first token of any kind, from the sending (closed loop) or from the intended start (open loop)."""
    return None if first_token_s is None else first_token_s - origin_s


def tpot_ms(
    *,
    first_token_s: float | None,
    last_token_s: float | None,
    output_tokens: int | None,
    first_chunk_tokens: int | None,
) -> float | None:
    """Time per output token after the first chunk: its tokens took no time that could be seen between chunks.

    With one token in the first chunk this is (last - first) / (output - 1). None when all tokens came in one chunk.
    """
    if first_token_s is None or last_token_s is None or output_tokens is None:
        return None
    rest = output_tokens - (first_chunk_tokens or 1)
    if rest < 1 or last_token_s <= first_token_s:
        return None
    return 1000 * (last_token_s - first_token_s) / rest


def e2e_s(*, origin_s: float, last_token_s: float | None) -> float | None:
    """From the origin (see `ttft_s`) to the last token."""
    return None if last_token_s is None else last_token_s - origin_s


def percentile(values: Sequence[float] | np.ndarray, percent: float) -> Given:
    """Linear-interpolated percentile, given only where the sample can carry it.

    A tail percentile needs 10 values beyond it (p90: 100, p95: 200, p99: 1,000, p99.9: 10,000); the median needs 5.
    """
    need = 5 if percent <= 50 else math.ceil(10 / (1 - percent / 100) - 1e-6)
    if len(values) < need:
        return Given(None, f"too few requests: {len(values)} of {need}")
    return Given(float(np.percentile(np.asarray(values, dtype=float), percent)))


def mean(values: Sequence[float] | np.ndarray, absent: str) -> Given:
    """Arithmetic mean, or `absent` as the reason."""
    return Given(float(np.mean(np.asarray(values, dtype=float)))) if len(values) else Given(None, absent)


def ratio(numerator: float, denominator: float, absent: str) -> Given:
    """A ratio of sums, or `absent` as the reason when the denominator is nothing."""
    return Given(numerator / denominator) if denominator > 0 else Given(None, absent)


def spread_gaps_ms(times_s: Sequence[float], tokens: Sequence[int]) -> list[float]:
    """Inter-token latencies: each gap between chunks, divided evenly among the tokens that ended it."""
    gaps: list[float] = []
    for i in range(1, len(times_s)):
        if tokens[i] > 0:
            gaps += [1000 * (times_s[i] - times_s[i - 1]) / tokens[i]] * tokens[i]
    return gaps


def _family(stem: str, unit: str, what: str, formula: str) -> tuple[Metric, ...]:
    return (
        Metric(f"{stem}_mean_{unit}", unit, f"{what}, mean over the sample", formula),
        *(Metric(f"{stem}_p{q}_{unit}", unit, f"{what}, {q}th percentile", formula) for q in (50, 95, 99)),
    )


METRICS: tuple[Metric, ...] = (
    Metric("output_tok_s", "tokens/s", "output tokens that arrived inside the windows, per second of them",
           "sum over passes of tokens inside / sum of window durations"),
    Metric("input_tok_s", "tokens/s", "prompt tokens computed: without those found in a cache",
           "sum of (input - cached) of answers whose first token came inside / sum of window durations"),
    Metric("logical_input_tok_s", "tokens/s", "prompt tokens served: cached ones count",
           "sum of input of answers whose first token came inside / sum of window durations"),
    Metric("steady_output_tok_s", "tokens/s", "output tokens while the declared concurrency was up, per second of it",
           "tokens between the first and the last moment of full concurrency / that time"),
    Metric("requests_s", "1/s", "measured requests that ended well, per second", "count / sum of window durations"),
    Metric("goodput_requests_s", "1/s", "measured requests that met every level about single requests, per second",
           "count / sum of window durations"),
    Metric("slo_attainment_ratio", "", "share of attempted measured requests that met every such level",
           "count / attempted"),
    *_family("ttft", "s", "time to first token of any kind", "first token - origin"),
    Metric("answer_ttft_mean_s", "s", "time to first token that is not reasoning, mean", "first such token - origin"),
    *_family("tpot", "ms", "time per output token after the first chunk",
             "(last token - first token) / (output tokens - tokens of the first chunk), one value a request"),
    Metric("tpot_pooled_ms", "ms", "the same, weighted by tokens over all requests",
           "sum of (last - first) / sum of (output tokens - tokens of the first chunk)"),
    *_family("itl", "ms", "inter-token latency: each gap between chunks spread over the tokens that ended it",
             "gap / tokens of the chunk, once for every token"),
    *_family("chunk_gap", "ms", "time between chunks, however many tokens they carry", "arrival - previous arrival"),
    *_family("e2e", "s", "end-to-end latency", "last token - origin"),
    Metric("num_requests", "", "measured requests that ended well", "count"),
    Metric("num_attempted", "", "measured requests that were sent", "count"),
    Metric("num_failed", "", "measured requests that failed", "attempted - ended well"),
    Metric("duration_s", "s", "length of all windows", "sum over passes of (last token - first sending)"),
    Metric("cached_ratio", "", "share of measured prompt tokens that a cache held", "sum of cached / sum of input"),
    Metric("accept_length", "tokens", "output tokens per verify step", "sum of output tokens / sum of verify steps"),
    Metric("handoff_p50_ms", "ms", "median from prefill's last chunk to decode having the request", "1000 * handoff_s"),
    Metric("handoff_p95_ms", "ms", "the same at the 95th percentile", "1000 * handoff_s"),
    Metric("output_tok_s_cv", "", "spread of output_tok_s between the session's passes", "standard deviation / mean"),
    Metric("running_p50", "", "requests running in an engine step inside the windows, median", "median over steps"),
    Metric("pages_used_p50_ratio", "", "share of cache pages in use inside the windows, median", "median over steps"),
)  # fmt: skip

SCORE_METRICS: tuple[Metric, ...] = (
    Metric("accuracy_ratio", "", "share of answered items that were answered rightly, over all runs",
           "right / answered"),
    Metric("unanswered_ratio", "", "share of items without an answer: failed requests, and cut-off ones by default",
           "unanswered / (items x runs)"),
)  # fmt: skip
"""Only of sessions whose answers are scored."""


def page() -> str:
    """The definitions as a Markdown page: docs/metrics.md is exactly this text."""
    rows = [f"| `{m.key}` | {m.unit or '-'} | {m.meaning} | {m.formula} |" for m in (*METRICS, *SCORE_METRICS)]
    return _PAGE.format(table="\n".join(rows))


_PAGE = """# Metrics: what each number means

This page is written by `python -m workloads.definitions`; a test compares it with the code.

* **Window.** A pass's window runs from the first measured request's sending (open loop: its intended start) to the
  last measured request's last token. Token events decide what is inside, not requests: a warm-up request that still
  streams counts with the tokens it brought there. Tokens before + inside + after = all tokens.
* **Origin** of a latency: the sending in a closed loop, the *intended* start in an open loop, so that a client or
  server that falls behind cannot hide it.
* **First token**: of any kind, reasoning included. `answer_ttft` is the first token that is not reasoning.
* **TPOT** leaves out the tokens of the first chunk, because their time lies before it. With one token in the first
  chunk it is (last - first) / (output - 1). An answer that came in one chunk has none. **Chunk gap** is another metric
  with another name: three tokens every 30 ms are 10 ms TPOT and 30 ms chunk gap.
* **Counts** are the server's; the client's own count is compared with them and never replaces them.
* **A session's value** is a ratio of sums over its passes, or a statistic over all its measured requests. Passes are
  shown and never counted as repetitions.
* **Percentiles** interpolate linearly and are given only where the sample carries them: 10 values beyond (p95: 200
  requests, p99: 1,000), 5 for the median. Otherwise the value is null and `metrics_missing` says why.
* **No number of an invalid run**: `metrics` is then absent; `diagnostics` has the values for whoever looks for the
  cause.

| key | unit | meaning | formula |
| --- | --- | --- | --- |
{table}
"""

if __name__ == "__main__":
    import sys

    sys.stdout.write(page())
