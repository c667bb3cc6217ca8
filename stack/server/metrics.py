"""What one instance counts of its requests, and the Prometheus page that shows it beside the worker's own gauges.

Knows requests by their generations and the worker by a mapping of numbers; reads no clock but a generation's own times.
"""

import re
import time
from collections import deque
from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest

from stack.server.generation import Generation

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
_WINDOW_S = 5.0

disable_created_metrics()

# worker's name -> the name that existing dashboards know
_KNOWN_GAUGES = {
    "running": "sglang:num_running_reqs",
    "waiting": "sglang:num_queue_reqs",
    "prefill_bootstrap_queue": "sglang:num_prefill_bootstrap_queue_reqs",
    "prefill_inflight_queue": "sglang:num_prefill_inflight_queue_reqs",
    "decode_prealloc_queue": "sglang:num_decode_prealloc_queue_reqs",
    "decode_transfer_queue": "sglang:num_decode_transfer_queue_reqs",
    "transfer_latency_ms": "sglang:kv_transfer_latency_ms",
    "transfer_speed_gb_s": "sglang:kv_transfer_speed_gb_s",
}


class Metrics:
    """Counters since the start; acceptance and hit rate since the last flush."""

    def __init__(self, model_name: str) -> None:
        self.registry = CollectorRegistry()
        self._label = {"model_name": model_name}
        self._prompt_tokens = self._counter("sglang:prompt_tokens", "Prompt tokens of finished requests")
        self._output_tokens = self._counter("sglang:generation_tokens", "Tokens generated")
        self._cached_tokens = self._counter("sglang:cached_tokens", "Prompt tokens that were not computed")
        self._requests = self._counter("sglang:num_requests", "Requests that ended well")
        self._failures = self._counter("np1d:num_failed_requests", "Requests that failed, clients gone included")
        self._first = self._histogram("sglang:time_to_first_token_seconds", "Arrival to first token")
        self._between = self._histogram("sglang:inter_token_latency_seconds", "Gap between tokens, spread over a step")
        self._whole = self._histogram("sglang:e2e_request_latency_seconds", "Arrival to last token")
        self._hit_rate = self._gauge("sglang:cache_hit_rate", "Cached share of prompt tokens since the last flush")
        self._accept = self._gauge("sglang:spec_accept_length", "Committed tokens a verify step since the last flush")
        self._throughput = self._gauge("sglang:gen_throughput", "Tokens a second over the last five seconds")
        self._recent: deque[tuple[float, int]] = deque()
        self.reset()

    def reset(self) -> None:
        """Forget what is counted since the last flush."""
        self.num_verify = self.num_accepted_drafts = 0
        self._hit, self._asked = 0, 0

    @property
    def accept_length(self) -> float | None:
        """Mean committed tokens of a verify step, the bonus token included; None without speculation."""
        return 1.0 + self.num_accepted_drafts / self.num_verify if self.num_verify else None

    @property
    def throughput(self) -> float:
        """Generated tokens a second over the last five seconds."""
        self._forget(time.monotonic())
        return sum(count for _, count in self._recent) / _WINDOW_S

    @property
    def is_active(self) -> bool:
        """Whether a token came within the last five seconds."""
        self._forget(time.monotonic())
        return bool(self._recent)

    def tokens(self, count: int, generation: Generation, previous_s: float, *, is_first: bool) -> None:
        """`count` new tokens, `previous_s` after which the last ones came (a monotonic time)."""
        if not count:
            return
        self._output_tokens.inc(count)
        self._recent.append((generation.last_s, count))
        self._forget(generation.last_s)
        if is_first:
            self._first.observe(generation.latency_s)
        else:
            self._between.observe((generation.last_s - previous_s) / count)

    def verified(self, num_verify: int, num_accepted: int) -> None:
        """New verify steps and the drafts they accepted."""
        self.num_verify += num_verify
        self.num_accepted_drafts += num_accepted

    def finished(self, generation: Generation) -> None:
        """A generation ended."""
        if generation.finish is None or generation.finish.kind == "abort":
            self._failures.inc()
            return
        self._requests.inc()
        self._prompt_tokens.inc(generation.num_prompt_tokens)
        self._cached_tokens.inc(generation.cached_tokens)
        self._asked += generation.num_prompt_tokens
        self._hit += generation.cached_tokens
        self._whole.observe(generation.latency_s)

    def page(self, worker: Mapping[str, float]) -> bytes:
        """The Prometheus text, with the worker's gauges as `np1d_<name>` and under the names dashboards know."""
        self._hit_rate.set(self._hit / self._asked if self._asked else 0.0)
        self._accept.set(self.accept_length or 0.0)
        self._throughput.set(self.throughput)
        gauges = {f"np1d_{re.sub(r'[^a-zA-Z0-9_]', '_', name)}": value for name, value in worker.items()}
        gauges |= {known: worker[name] for name, known in _KNOWN_GAUGES.items() if name in worker}
        if worker.get("pages_total"):
            gauges["sglang:token_usage"] = worker.get("pages_used", 0.0) / worker["pages_total"]
        own = CollectorRegistry()
        for name, value in gauges.items():
            Gauge(name, name, list(self._label), registry=own).labels(**self._label).set(value)
        return generate_latest(self.registry) + generate_latest(own)

    def _forget(self, now_s: float) -> None:
        while self._recent and self._recent[0][0] < now_s - _WINDOW_S:
            self._recent.popleft()

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(name, text, list(self._label), registry=self.registry).labels(**self._label)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(name, text, list(self._label), registry=self.registry).labels(**self._label)

    def _histogram(self, name: str, text: str) -> Histogram:
        made = Histogram(name, text, list(self._label), registry=self.registry, buckets=_SECONDS)
        return made.labels(**self._label)
