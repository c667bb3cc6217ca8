"""Is this run a result? Decided before any metric, by rules that each show value, limit, verdict and reason.

A rule passes, fails, or does not apply and says why. One failure makes the run INVALID, whatever its numbers. What
cannot be verified although the workload declares it fails: silence of a server is no proof.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import pandas as pd

from workloads.gpu_samples import HARMLESS_REASONS, POWER_CAP
from workloads.passes import PassSums
from workloads.sources.shared_prefix import reusable_len
from workloads.spec import Workload

RuleVerdict = Literal["pass", "fail", "not_applicable"]
Value = float | int | str | list[float] | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """The outcome of one rule. `reason` is empty only when the rule passes."""

    rule: str
    verdict: RuleVerdict
    value: Value = None
    limit: Value = None
    source: str
    """Where the value comes from: client, server, records, gpu, supervisor."""
    reason: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Validity:
    """All rules, and the one verdict that follows from them."""

    rules: Sequence[Rule]
    warnings: Sequence[str] = ()

    @property
    def is_valid(self) -> bool:
        """No rule failed."""
        return all(rule.verdict != "fail" for rule in self.rules)

    def as_json(self) -> dict[str, Any]:
        """The `validity` part of metrics.json."""
        return {
            "verdict": "VALID" if self.is_valid else "INVALID",
            "reasons": [f"{rule.rule}: {rule.reason}" for rule in self.rules if rule.verdict == "fail"],
            "rules": [dataclasses.asdict(rule) for rule in self.rules],
            "warnings": list(self.warnings),
        }


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Everything that the rules may look at."""

    workload: Workload
    requests: pd.DataFrame
    chunks: pd.DataFrame
    passes: Sequence[PassSums]
    client: Mapping[str, Any]
    gpu: Sequence[Mapping[str, Any]] | None = None
    restarts: int | None = None

    @property
    def measured_ok(self) -> pd.DataFrame:
        """Measured requests that ended well."""
        return self.requests[(self.requests["phase"] == "measured") & self.requests["ok"]]


def judge(evidence: Evidence) -> Validity:
    """Apply every rule."""
    return Validity([rule(evidence) for rule in RULES], _warnings(evidence))


def _check(name: str, source: str, value: Value, limit: Value, is_fine: bool, reason: str) -> Rule:
    verdict: RuleVerdict = "pass" if is_fine else "fail"
    return Rule(rule=name, verdict=verdict, value=value, limit=limit, source=source, reason="" if is_fine else reason)


def _skip(name: str, source: str, reason: str) -> Rule:
    return Rule(rule=name, verdict="not_applicable", source=source, reason=reason)


def _complete(e: Evidence) -> Rule:
    planned = e.workload.passes * _measured_per_pass(e.workload)
    sent = int((e.requests["phase"] == "measured").sum())
    status = e.client["status"]
    reason = (
        f"the client ended as {status} ({e.client.get('reason')})"
        if status != "complete"
        else (f"{sent} of {planned} measured requests were sent")
    )
    return _check("complete", "client", sent, planned, status == "complete" and sent == planned, reason)


def _errors(e: Evidence) -> Rule:
    limit = e.workload.limits.max_error_ratio
    failed = e.requests[~e.requests["ok"]]
    value = len(failed) / len(e.requests) if len(e.requests) else 1.0
    kinds = ", ".join(f"{n} {kind}" for kind, n in failed["error_kind"].value_counts().items())
    first = failed["error"].iloc[0] if len(failed) else ""
    reason = f"{len(failed)} of {len(e.requests)} requests failed ({kinds}); the first: {first}"
    if e.requests.empty:
        reason = "no request was sent"
    return _check("errors", "client", value, limit, value <= limit, reason)


def _output_length(e: Evidence) -> Rule:
    ok = e.measured_ok
    if not e.workload.sampling.ignore_eos:
        wrong = int((ok["output_tokens"] > ok["output_tokens_requested"]).sum())
        return _check("output_length", "server", wrong, 0, wrong == 0, f"{wrong} answers exceed their limit")
    if ok.empty:
        return _check("output_length", "server", None, 0, False, "no request ended well")
    wrong = int((ok["output_tokens"].fillna(-1) != ok["output_tokens_requested"]).sum())
    return _check(
        "output_length", "server", wrong, 0, wrong == 0,
        f"{wrong} of {len(ok)} answers have another length than requested, although ignore_eos was asked for",
    )  # fmt: skip


def _token_counts(e: Evidence) -> Rule:
    ok = e.requests[e.requests["ok"]]
    unknown = int(ok["output_tokens"].isna().sum())
    if unknown:
        return _check("token_counts", "server", unknown, 0, False, f"{unknown} answers came without a token count")
    keys = ["pass_index", "request_index"]
    counted = e.chunks.groupby(keys)["num_tokens"].agg(lambda n: n.sum(skipna=False))
    sums = ok.set_index(keys)["output_tokens"]
    chunked = counted.reindex(sums.index)
    differ = (chunked.notna() & (chunked != sums)).fillna(False)
    seen = ok.set_index(keys)["output_tokens_seen"]
    differ |= (seen.notna() & (seen != sums)).fillna(False)
    wrong = int(differ.sum())
    reason = f"{wrong} answers carry another number of tokens than the server says"
    return _check("token_counts", "records", wrong, 0, wrong == 0, reason)


def _input_length(e: Evidence) -> Rule:
    ok = e.measured_ok
    known = ok[ok["input_tokens_requested"].notna()]
    if known.empty:
        return _skip("input_length", "server", "prompt lengths are not fixed by construction in this workload")
    wrong = known[known["input_tokens"].fillna(-1) != known["input_tokens_requested"]]
    reason = ""
    if len(wrong):
        got, want = wrong["input_tokens"].iloc[0], wrong["input_tokens_requested"].iloc[0]
        reason = f"the server counts {'no' if pd.isna(got) else got} prompt tokens where {want} were sent"
    return _check("input_length", "server", len(wrong), 0, wrong.empty, reason)


def _cached_ratio(e: Evidence) -> Rule:
    band = cached_band(e.workload, e.measured_ok)
    if band is None:
        return _skip("cached_ratio", "server", "the workload declares no band for naturally cached tokens")
    ok = e.measured_ok
    if ok.empty or ok["cached_tokens"].isna().any() or ok["input_tokens"].isna().any():
        reason = "the server does not report cached tokens, so the cache's state is unknown"
        return _check("cached_ratio", "server", None, list(band), False, reason)
    value = float(ok["cached_tokens"].sum()) / float(ok["input_tokens"].sum())
    reason = f"{value:.4%} of the prompt tokens were cached, outside [{band[0]:.4%}, {band[1]:.4%}]"
    return _check("cached_ratio", "server", value, list(band), band[0] - 1e-9 <= value <= band[1] + 1e-9, reason)


def _flush(e: Evidence) -> Rule:
    if e.workload.cache.flush == "never":
        return _skip("flush", "client", "the workload asks for no flush")
    reports = [p["flush"] for p in e.client["passes"]]
    bad = [r for r in reports if r["status"] not in ("ok", "skipped")]
    value = bad[0]["status"] if bad else "ok"
    reason = f"the cache was not flushed ({bad[0]['detail']})" if bad else "no pass began"
    return _check("flush", "client", value, "ok", not bad and bool(reports), reason)


def _prime(e: Evidence) -> Rule:
    if e.workload.cache.intent != "primed":
        return _skip("prime", "client", "the workload primes nothing")
    failed = sum(p["prime"]["num_failed"] for p in e.client["passes"])
    sent = sum(p["prime"]["num_requests"] for p in e.client["passes"])
    reason = f"{failed} of {sent} priming requests failed"
    return _check("prime", "client", failed, 0, failed == 0 and sent > 0, reason)


def _accept_length(e: Evidence) -> Rule:
    band = e.workload.limits.accept_length
    ok = e.measured_ok
    verified = ok[ok["num_verify"].notna() & (ok["num_verify"] > 0)]
    if band is None:
        return _skip("accept_length", "server", "the workload declares no band of acceptance")
    if verified.empty:
        return _check("accept_length", "server", None, list(band), False, "the server reports no verify steps")
    value = float(verified["output_tokens"].sum()) / float(verified["num_verify"].sum())
    reason = f"acceptance length {value:.3f} is outside [{band[0]:g}, {band[1]:g}]"
    return _check("accept_length", "server", value, list(band), band[0] <= value <= band[1], reason)


def _concurrency(e: Evidence) -> Rule:
    declared, limit = e.workload.concurrency, e.workload.limits.min_concurrency_share
    if declared is None:
        return _skip("concurrency", "client", "arrivals do not wait for answers in this workload")
    shares = [p.concurrency_share or 0.0 for p in e.passes]
    value = min(shares, default=0.0)
    peaks = [p["peak_in_flight"] for p in e.client["passes"]]
    if any(peak > declared for peak in peaks):
        return _check("concurrency", "client", max(peaks), declared, False, f"{max(peaks)} requests were in flight")
    reason = f"{declared} requests were in flight for only {value:.1%} of a window"
    return _check("concurrency", "client", value, limit, value >= limit, reason)


def _warmup(e: Evidence) -> Rule:
    declared = e.workload.concurrency
    if declared is None:
        return _skip("warmup_concurrency", "client", "arrivals do not wait for answers in this workload")
    peaks = [max(p["peak_in_warmup"], p.get("warmup", {}).get("peak_in_flight", 0)) for p in e.client["passes"]]
    value = max(peaks, default=0)
    reason = f"{value} warm-up requests were in flight, more than the declared {declared}"
    return _check("warmup_concurrency", "client", value, declared, value <= declared, reason)


def _loop_lag(e: Evidence) -> Rule:
    limit = e.workload.limits.max_loop_lag_p99_ms
    lags = [p["loop_lag_p99_ms"] for p in e.client["passes"]]
    if not lags or any(lag is None for lag in lags):
        return _check("client_bound", "client", None, limit, False, "the client's loop lag was not measured")
    value = max(lags)
    reason = f"the client's event loop was {value:.1f} ms late at p99: the client is the bottleneck"
    return _check("client_bound", "client", value, limit, value < limit, reason)


def _start_lag(e: Evidence) -> Rule:
    limit, ok = e.workload.limits.max_start_lag_ratio, e.measured_ok
    if ok.empty:
        return _check("start_lag", "client", None, limit, False, "no request ended well")
    late = (ok["start_s"] - ok["intended_start_s"]).mean()
    value = float(late / (ok["last_token_s"] - ok["intended_start_s"]).mean())
    reason = f"requests were sent late by {value:.2%} of their latency"
    return _check("start_lag", "client", value, limit, value <= limit, reason)


def _window(e: Evidence) -> Rule:
    limit = e.workload.limits.min_window_s
    value = min((p.window.duration_s for p in e.passes), default=0.0)
    reason = f"a window of {value:.2f} s is shorter than {limit:g} s; raise requests_per_pass"
    return _check("window", "records", value, limit, value >= limit, reason)


def _finite(e: Evidence) -> Rule:
    numbers = e.requests.select_dtypes(include="number").to_numpy(dtype=float, na_value=0.0)
    times = e.chunks["t_s"].to_numpy(dtype=float)
    bad = int((~np.isfinite(numbers)).sum() + (~np.isfinite(times)).sum())
    return _check("finite", "records", bad, 0, bad == 0, f"{bad} numbers in the records are not finite")


def _noise(e: Evidence) -> Rule:
    limit = e.workload.limits.max_noise
    rates = [p.output_tokens / p.window.duration_s for p in e.passes if p.output_tokens and p.window.duration_s]
    if limit is None or e.workload.passes < 2:
        return _skip("noise", "records", "the workload declares no limit, or one pass alone has no spread")
    if len(rates) < 2:
        return _check("noise", "records", None, limit, False, "fewer than two passes have a throughput")
    value = float(np.std(rates, ddof=1) / np.mean(rates))
    reason = f"throughput differs by {value:.2%} (cv) between the passes of this session"
    return _check("noise", "records", value, limit, value <= limit, reason)


def _restarts(e: Evidence) -> Rule:
    if e.restarts is None:
        return _skip("restarts", "supervisor", "nobody who watches the workers said anything")
    return _check("restarts", "supervisor", e.restarts, 0, e.restarts == 0, f"{e.restarts} workers died or restarted")


def _gpu_rule(name: str, decide: Callable[[Evidence, Sequence[Mapping[str, Any]]], Rule]) -> Callable[[Evidence], Rule]:
    def rule(e: Evidence) -> Rule:
        if e.gpu:
            return decide(e, e.gpu)
        if e.workload.limits.gpu == "required":
            return _check(name, "gpu", None, None, False, "there are no GPU samples of this session")
        return _skip(name, "gpu", "no GPU is declared")

    return rule


def _foreign(e: Evidence, samples: Sequence[Mapping[str, Any]]) -> Rule:
    value = len({pid for s in samples for pid in s.get("foreign_pids") or ()})
    return _check("foreign_processes", "gpu", value, 0, value == 0, f"{value} other processes used the GPUs")


def _throttle(e: Evidence, samples: Sequence[Mapping[str, Any]]) -> Rule:
    inside = _in_windows(e, samples)
    found = {r for s in inside for r in s.get("reasons") or ()} - HARMLESS_REASONS - {POWER_CAP}
    names = ", ".join(sorted(found))
    return _check("throttle", "gpu", names or "none", "none", not found, f"the GPUs were slowed down by {names}")


def _power_cap(e: Evidence, samples: Sequence[Mapping[str, Any]]) -> Rule:
    limit, inside = e.workload.limits.max_power_cap_share, _in_windows(e, samples)
    value = sum(POWER_CAP in (s.get("reasons") or ()) for s in inside) / len(inside) if inside else 0.0
    reason = f"the power cap held the clocks down in {value:.1%} of the samples"
    return _check("power_cap", "gpu", value, limit, value <= limit, reason)


def _sm_clock(e: Evidence, samples: Sequence[Mapping[str, Any]]) -> Rule:
    band = e.workload.limits.sm_clock_mhz
    clocks = [s["sm_clock_mhz"] for s in _in_windows(e, samples) if s.get("sm_clock_mhz") is not None]
    if band is None:
        return _skip("sm_clock", "gpu", "no baseline clock is declared")
    if not clocks:
        return _check("sm_clock", "gpu", None, list(band), False, "no clock was sampled inside the windows")
    value = float(np.mean(clocks))
    reason = f"the mean SM clock of {value:.0f} MHz is outside [{band[0]:g}, {band[1]:g}]"
    return _check("sm_clock", "gpu", value, list(band), band[0] <= value <= band[1], reason)


def _in_windows(e: Evidence, samples: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    spans = [
        (p["t0_unix_s"] + sums.window.start_s, p["t0_unix_s"] + sums.window.end_s)
        for p, sums in zip(e.client["passes"], e.passes, strict=False)
    ]
    return [s for s in samples if any(start <= s["t_unix_s"] <= end for start, end in spans)]


def cached_band(workload: Workload, measured_ok: pd.DataFrame) -> tuple[float, float] | None:
    """The allowed share of cached prompt tokens: declared, or derived from what the prompts share.

    A primed prefix is hit up to a multiple of the cache's granularity; one granule less is still a hit (a cache may end
    a hit where a state was kept). Never more than what is shared.
    """
    cache = workload.cache
    if cache.band is not None:
        return cache.band
    if cache.intent == "cold":
        return (0.0, 0.0)
    total = float(measured_ok["input_tokens_requested"].fillna(0).sum())
    if cache.intent == "natural" or total == 0:
        return None
    shared = measured_ok["shared_tokens"].fillna(0).to_numpy(dtype=int)
    granule = cache.granularity_tokens
    low = sum(max(0, reusable_len(int(s), granule) - granule) for s in shared)
    return (low / total, float(shared.sum()) / total)


def _measured_per_pass(workload: Workload) -> int:
    turns = workload.source.turns if workload.source.kind == "chat" else 1
    return -(-workload.num_measured // turns) * turns


def _warnings(e: Evidence) -> list[str]:
    found = []
    verified = e.measured_ok["num_verify"].notna().any()
    if verified and e.workload.source.kind in ("random", "shared_prefix"):
        found.append("acceptance was measured on random tokens, which misstates it; compare with natural_text")
    return found


RULES: tuple[Callable[[Evidence], Rule], ...] = (
    _complete, _errors, _output_length, _token_counts, _input_length, _flush, _prime, _cached_ratio, _accept_length,
    _concurrency, _warmup, _loop_lag, _start_lag, _window, _finite, _noise, _restarts,
    _gpu_rule("foreign_processes", _foreign), _gpu_rule("throttle", _throttle), _gpu_rule("power_cap", _power_cap),
    _gpu_rule("sm_clock", _sm_clock),
)  # fmt: skip
"""In the order in which they are shown."""
