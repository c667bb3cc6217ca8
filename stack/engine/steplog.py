"""One JSON line a step, and the same numbers as gauges: how full the batch, the pages and the slots are.

Per step: what ran. Totals since the start: hit tokens, swaps, verifies, accepted drafts.
"""

import time
from pathlib import Path

import msgspec

from stack.core.plan import StepPlan, StepResult
from stack.scheduler import Scheduler

Line = dict[str, float | int | str]


class StepLog:
    """Appends to `path` until closed. Lines are whole: a reader never sees half of one but the last."""

    def __init__(self, path: Path, scheduler: Scheduler) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab", buffering=0)
        self._scheduler = scheduler
        self._encode = msgspec.json.Encoder().encode

    def write(self, plan: StepPlan, result: StepResult, host_s: dict[str, float]) -> None:
        """Log a step that was taken in."""
        line = gauges(self._scheduler) | step_facts(plan, result, self._scheduler.width)
        timing = {**host_s, **result.phases_s, "device_s": result.device_s}
        line |= {name: round(seconds, 7) for name, seconds in timing.items()}
        self._file.write(self._encode(line) + b"\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def step_facts(plan: StepPlan, result: StepResult, width: int) -> Line:
    """What one step ran and made. `verify` counts rows that committed something: with overlap a request's row may run
    once more after its limit, which says nothing about drafts."""
    made = sum(map(len, result.tokens))
    is_decode = plan.kind == "decode"
    facts: Line = {
        "t_s": time.monotonic(),
        "step": plan.step,
        "kind": "verify" if is_decode and width > 1 else plan.kind,
        "rows": len(plan.decode_slots) if is_decode else len(plan.prefill),
        "tokens": made if is_decode else plan.num_tokens,
        "swap_outs": len(plan.swap_outs),
        "swap_ins": len(plan.swap_ins),
    }
    if is_decode:
        facts["running"] = len(plan.decode_slots)
        facts["verify"] = sum(1 for tokens in result.tokens if tokens) if width > 1 else 0
        facts["accepted"] = sum(max(len(tokens) - 1, 0) for tokens in result.tokens) if width > 1 else 0
    return facts


def gauges(scheduler: Scheduler) -> Line:
    """Who is where and how much memory is taken. Pages that nobody uses but the cache keeps are not `used`."""
    book, cache = scheduler.book, scheduler.memory.cache
    pages, slots, totals = cache.page_counts(), cache.slot_counts(), book.totals
    return {
        "running": len(book.running),
        "running_limit": scheduler.limits.max_running,
        "waiting": len(book.waiting),
        "prefilling": len(book.prefilling),
        "swapped": len(book.swapped),
        "inflight": len(book.receiving) + len(book.arrived) + len(book.sending),
        "pages_used": pages.total - pages.free - pages.evictable,
        "pages_cached": pages.cached,
        "pages_total": pages.total,
        "page_bytes": scheduler.memory.page_bytes,
        "slots_used": slots.total - slots.free - slots.evictable,
        "slots_cached": slots.cached,
        "slots_total": slots.total,
        "slot_bytes": scheduler.memory.slot_bytes,
        "requests": totals.requests,
        "hit_tokens": totals.cached_tokens,
        "prompt_tokens": totals.prompt_tokens,
        "generated_tokens": totals.generated_tokens,
        "num_verify": totals.verifies,
        "num_accepted_drafts": totals.accepted_drafts,
        "num_swaps": totals.swaps,
        "num_requeues": totals.requeues,
        "num_refused": totals.refused,
        "num_aborted": totals.aborted,
    }
