"""One equation for all memory of an instance: bytes in, pages, slots and the running limit out.

    slots(n) + rings(n) + snapshots(n) + workspace + pages(n) <= budget        n running requests

The running limit is the largest n that fits the planned load (`cache.expected_*`); what is left over becomes pages.
With `pool_split: auto` a fixed share goes to slots instead, whatever the load. Where the device's free memory is known,
the budget and what lies outside it must fit there. Loads no weights and touches no device.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from stack.cache.layout import ITEM_BYTES, CacheLayout, cache_layout, geometries
from stack.cache.load import Load, Term, readable
from stack.cache.ways_out import MIB, Room, ways_out
from stack.cache.weights import weight_bytes
from stack.config import EngineConfig
from stack.core.errors import CapacityError
from stack.core.geometry import ModelGeometry

GIB = 2**30
CPU_BUDGET_BYTES = 256 * 2**20
"""Cache budget on the CPU unless `cache.budget_bytes` is set: processes share the host's memory there."""
MAX_WORKSPACE_BYTES = 512 * 2**20
GRAPH_BYTES = 48 * 2**20
"""Estimate for one captured batch size."""
MOST_RUNNING = 4096
"""Beyond this many requests the device tables of a step are no longer small."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """What an instance allocates. Counts leave out page 0, slot 0 and entry 0, which the pools add."""

    num_pages: int
    num_slots: int
    num_live_slots: int
    """Slots for running requests and those in flight; the rest may keep states for later prompts."""
    max_running: int
    num_ring_entries: int
    num_snapshot_entries: int
    index_workspace_bytes: int
    page_size: int
    budget_bytes: int
    device_bytes: int
    """Device memory that was free before anything was loaded; 0 where it was not asked for, and so not checked."""
    pages_limit: int
    """Requests of the planned load that the pages hold."""
    slots_limit: int
    """Requests that the slots hold, those in flight left out."""
    planned_pages_ratio: float
    """Share of the pages that the planned load fills."""
    planned_slots_ratio: float
    """Share of the live slots that the planned load fills."""
    load: Load
    terms: tuple[Term, ...]

    @property
    def notes(self) -> tuple[str, ...]:
        """What is planned otherwise than configured, or bounded by something else than memory; a sentence each."""
        is_capped = self.max_running == MOST_RUNNING and self.load.config.scheduler.max_running is None
        capped = f"memory holds more, but no instance runs more than {MOST_RUNNING} requests"
        return (*self.load.notes, *([capped] if is_capped else []))

    @property
    def max_total_tokens(self) -> int:
        """Tokens that the pages hold."""
        return self.num_pages * self.page_size

    @property
    def max_context(self) -> int:
        """Tokens of the longest request that can be served: the model's limit, or all pages."""
        return min(self.load.max_context, self.max_total_tokens - 2 * self.load.layout.verify_width)

    def as_dict(self) -> dict[str, float | int | str]:
        """Flat and ready for JSON: counts, the planned load beside the configured one, and every term in bytes.
        `device_bytes` is there only where the device was checked, `notes` is empty where there is nothing to say."""
        cache = self.load.config.cache
        counts: dict[str, float | int | str] = {
            "num_pages": self.num_pages,
            "page_size": self.page_size,
            "max_total_tokens": self.max_total_tokens,
            "max_context": self.max_context,
            "num_slots": self.num_slots,
            "num_live_slots": self.num_live_slots,
            "max_running": self.max_running,
            "extra_inflight": self.load.extra,
            "num_ring_entries": self.num_ring_entries,
            "num_snapshot_entries": self.num_snapshot_entries,
            "index_workspace_bytes": self.index_workspace_bytes,
            "budget_bytes": self.budget_bytes,
            "page_bytes": self.load.layout.page_bytes,
            "slot_bytes": self.load.layout.slot_bytes,
            "slots_per_request": cache.slots_per_request,
            "pages_limit": self.pages_limit,
            "slots_limit": self.slots_limit,
            "planned_pages_ratio": round(self.planned_pages_ratio, 4),
            "planned_slots_ratio": round(self.planned_slots_ratio, 4),
            "planned_context": self.load.context,
            "planned_output": self.load.output,
            "planned_shared": self.load.shared,
            "asked_context": cache.expected_context,
            "asked_output": cache.expected_output,
            "asked_shared": cache.expected_shared,
            "notes": "; ".join(self.notes),
            "layout_hash": self.load.layout.layout_hash,
        }
        if self.device_bytes:
            counts["device_bytes"] = self.device_bytes
        return counts | {f"bytes.{term.name.replace(' ', '_')}": term.num_bytes for term in self.terms}

    def table(self) -> str:
        """Every term on a line, then what they make possible."""
        lines = [_line(term.name, term.num_bytes, term.note) for term in self.terms]
        used = sum(term.num_bytes for term in self.terms if term.is_cache)
        lines.append(_line("unused", self.budget_bytes - used, "less than one page, or beyond the wish"))
        lines.append(_line("cache budget", self.budget_bytes, "cache terms and the unused rest"))
        if self.device_bytes:
            outside = sum(term.num_bytes for term in self.terms if not term.is_cache)
            left = self.device_bytes - self.budget_bytes - outside
            lines.append(_line("left on the device", left, f"of {readable(self.device_bytes)} free before weights"))
        elif self.load.config.model.device != "cpu":
            lines.append("the device's free memory is not known, so nothing was checked against it")
        at = self.load
        lines.append(
            f"{self.max_running} running (+ {at.extra} in flight) at {at.context} + {at.output} tokens, "
            f"{at.shared} shared: pages {self.planned_pages_ratio:.1%}, slots {self.planned_slots_ratio:.1%} filled"
        )
        lines.append(f"{self.max_total_tokens} tokens in {self.num_pages} pages, {self.num_slots} slots")
        lines += [f"note: {note}" for note in self.notes]
        return "\n".join(lines)


def plan_memory(config: EngineConfig, *, free_bytes: int = 0, weights: int | None = None) -> MemoryPlan:
    """The plan of an instance from its configuration alone; `weights` is worked out from the checkpoint when None."""
    geometry, _, draft = geometries(config)
    layout = cache_layout(geometry, config, draft)
    is_asked = config.cache.budget_bytes is None and config.model.device != "cpu"
    if weights is None and (is_asked or free_bytes):
        weights = weight_bytes(config, geometry.truncated(config.model.num_layers), draft)
    return solve(geometry, layout, config, free_bytes=free_bytes, weights=weights or 0)


def solve(
    geometry: ModelGeometry,
    layout: CacheLayout,
    config: EngineConfig,
    *,
    free_bytes: int = 0,
    weights: int = 0,
) -> MemoryPlan:
    """The memory plan of an instance whose device has `free_bytes` before weights are loaded; 0 leaves it unchecked.

    Raises CapacityError, with settings that do fit, when not even one request of the planned load fits, when
    `scheduler.max_running` is out of reach, or when the device has no room for the budget beside weights and the rest.
    """
    return _Solver(geometry, layout, config, free_bytes, weights).plan()


class _Solver:
    def __init__(
        self, geometry: ModelGeometry, layout: CacheLayout, config: EngineConfig, free_bytes: int, weights: int
    ) -> None:
        self._geometry = geometry
        self._config = config
        self._free_bytes = free_bytes
        self._weights = weights
        self._load = Load.of(layout, config, geometry.max_context)

    def plan(self) -> MemoryPlan:
        """The most requests that fit, or the wished number; what is left becomes pages, or idle slots."""
        wish = self._config.scheduler.max_running
        least = wish or 1
        if self._missing_bytes(least) > 0:
            raise CapacityError(self._device_refusal(least))
        most = self._most
        if most < least:
            raise CapacityError(self._refusal(least, most))
        running = wish or most
        if self._config.cache.pool_split == "auto":
            by_slots = _largest(self._slots_hold)
            return self._plan(
                running, self._load.num_slots(by_slots), self._load.num_live_slots(by_slots), self._auto_pages(running)
            )
        return self._plan(running, self._load.num_slots(running), self._load.num_live_slots(running))

    @property
    def _most(self) -> int:
        """The most requests that the budget holds and whose rows the device has room for beside it; 0 for none."""
        return _largest(lambda running: self._holds(running) and self._missing_bytes(running) <= 0)

    def _plan(self, running: int, num_slots: int, num_live: int, num_pages: int | None = None) -> MemoryPlan:
        load = self._load
        extra_slots = (num_slots - load.num_slots(running)) * load.layout.slot_bytes
        if num_pages is None:
            num_pages = (self._rest(running) - load.state_bytes(running)) // load.layout.page_bytes - 1
        idle = [Term("idle slots", extra_slots, f"{num_slots - load.num_slots(running)} slots")] if extra_slots else []
        terms = self._outside(running) + load.state_terms(running) + idle + load.page_terms(num_pages)
        terms.append(Term("index workspace", self._workspace(running), "FP32 scores of one tile"))
        return MemoryPlan(
            num_pages=num_pages,
            num_slots=num_slots,
            num_live_slots=num_live,
            max_running=running,
            num_ring_entries=load.num_ring_entries(running),
            num_snapshot_entries=load.num_snapshot_entries(running),
            index_workspace_bytes=self._workspace(running),
            page_size=load.layout.page_size,
            budget_bytes=self._budget(running),
            device_bytes=self._free_bytes,
            pages_limit=(num_pages - load.shared_pages) // load.private_pages - load.extra,
            slots_limit=num_live // self._config.cache.slots_per_request - load.extra,
            planned_pages_ratio=load.num_pages(running) / num_pages,
            planned_slots_ratio=load.num_live_slots(running) / num_live,
            load=load,
            terms=tuple(terms),
        )

    def _holds(self, running: int) -> bool:
        if running > MOST_RUNNING:
            return False
        if self._config.cache.pool_split == "auto":
            return self._slots_hold(running) and self._load.num_pages(running) <= self._auto_pages(running)
        pages = (self._load.num_pages(running) + 1) * self._load.layout.page_bytes
        return self._load.state_bytes(running) + pages <= self._rest(running)

    def _slots_hold(self, running: int) -> bool:
        """With a fixed split: whether the slots' share holds so many."""
        return self._load.state_bytes(running) <= self._config.cache.auto_state_share * self._rest(running)

    def _auto_pages(self, running: int) -> int:
        """With a fixed split: pages of the other share."""
        return int((1 - self._config.cache.auto_state_share) * self._rest(running)) // self._load.layout.page_bytes - 1

    def _rest(self, running: int) -> int:
        return self._budget(running) - self._workspace(running)

    def _workspace(self, running: int) -> int:
        return self._load.index_workspace_bytes(min(MAX_WORKSPACE_BYTES, max(self._budget(running) // 8, 0)))

    def _budget(self, running: int) -> int:
        cache = self._config.cache
        if cache.budget_bytes is not None:
            return cache.budget_bytes
        if self._is_cpu:
            return CPU_BUDGET_BYTES
        return int(cache.mem_fraction * self._free_bytes) - self._outside_bytes(running)

    def _outside_bytes(self, running: int) -> int:
        return sum(term.num_bytes for term in self._outside(running))

    def _outside(self, running: int) -> list[Term]:
        terms = [Term("weights", self._weights, "target and draft", is_cache=False)] if self._weights else []
        if self._is_cpu:
            return terms
        sizes = self._config.graphs.decode_batch_sizes if self._config.role != "prefill" else ()
        count = len(sizes) * self._config.graphs.decode + len(self._config.graphs.prefill_token_buckets)
        rows = self._rows(running)
        terms.append(Term("graphs", count * GRAPH_BYTES, f"estimate for {count} captures", is_cache=False))
        terms.append(Term("activations", rows * self._row_bytes, f"estimate for {rows} rows", is_cache=False))
        return terms

    @property
    def _is_cpu(self) -> bool:
        return self._config.model.device == "cpu"

    def _rows(self, running: int) -> int:
        decode_rows = running * self._load.layout.verify_width if self._config.role != "prefill" else 0
        prefill_rows = self._config.scheduler.max_prefill_tokens if self._config.role != "decode" else 0
        return max(decode_rows, prefill_rows)

    @property
    def _row_bytes(self) -> int:
        """Streams twice, a mixer's inputs and outputs, a MoE's pairs, and the logits of decode rows."""
        g, item = self._geometry, ITEM_BYTES[self._config.model.compute_dtype]
        mixer = max(6 * g.kda_num_heads * g.kda_head_dim, g.num_heads * (g.kv_lora_rank + g.qk_head_dim + g.v_head_dim))
        pairs = g.experts_per_token * (3 * g.expert_intermediate_size + 2 * g.hidden_size)
        logits = 4 * g.vocab_size if self._config.role == "decode" else 0
        return item * (2 * g.num_streams * g.hidden_size + 4 * g.hidden_size + max(mixer, pairs)) + logits

    def _missing_bytes(self, running: int) -> int:
        """By how much a budget that was given, and what lies outside it, exceed a device that is known."""
        if not self._free_bytes or self._is_share:
            return 0
        return self._budget(running) + self._outside_bytes(running) - self._free_bytes

    @property
    def _is_share(self) -> bool:
        """Whether the budget is a share of what the device has free."""
        return self._config.cache.budget_bytes is None and not self._is_cpu

    def _fits(self, changes: Mapping[str, Any]) -> bool:
        """Whether the plan succeeds with these dotted settings changed."""
        config = self._config
        for path, value in changes.items():
            section, name = path.split(".")
            config = replace(config, **{section: replace(getattr(config, section), **{name: value})})
        solver = _Solver(self._geometry, self._load.layout, config, self._free_bytes, self._weights)
        running = config.scheduler.max_running or 1
        return solver._holds(running) and solver._missing_bytes(running) <= 0

    def _room(self, running: int) -> Room:
        known = self._free_bytes - self._outside_bytes(running) if self._free_bytes else 0
        return Room(
            cache=self._config.cache,
            context=self._load.context,
            output=self._load.output,
            extra=self._load.extra,
            budget_bytes=self._budget(running),
            most_budget_bytes=known,
            is_wished=self._config.scheduler.max_running is not None,
            is_share=self._is_share,
        )

    def _refusal(self, wish: int, most: int) -> str:
        if wish > MOST_RUNNING:
            return self._refusal_of_many(most)
        load, budget = self._load, max(self._budget(1), 0)
        states, workspace = load.state_bytes(wish), self._workspace(1)
        pages = (load.num_pages(wish) + 1) * load.layout.page_bytes
        asked = f"{wish} running (+ {load.extra} in flight) at {load.context} + {load.output} tokens"
        asked += f" ({'; '.join(load.notes)})" if load.notes else ""
        needs = (
            f"{readable(states + pages + workspace)} ({readable(pages)} of pages, {readable(states)} of slots and "
            f"rings, {readable(workspace)} of workspace)"
        )
        ways = _fewer(most) + ways_out(self._room(wish), self._fits)
        return f"{asked} need {needs}, and the cache budget is {readable(budget)}{self._told_budget}: {_either(ways)}"

    def _refusal_of_many(self, most: int) -> str:
        fact = f"no instance runs more than {MOST_RUNNING} requests"
        if most:
            return f"{fact}: {_either(_fewer(most))}"
        unbound = replace(self._config, scheduler=replace(self._config.scheduler, max_running=None))
        solver = _Solver(self._geometry, self._load.layout, unbound, self._free_bytes, self._weights)
        return f"{fact}, so set scheduler.max_running to null; then {solver._refusal(1, 0)}"

    @property
    def _told_budget(self) -> str:
        """How the budget came about, where that is not the number that was given."""
        cache = self._config.cache
        if cache.pool_split == "auto":
            return f", {cache.auto_state_share:.0%} of it for slots whatever the load"
        if not self._is_share:
            return ""
        return (
            f" (cache.mem_fraction {cache.mem_fraction} of {readable(self._free_bytes)} free, less "
            f"{readable(self._outside_bytes(1))} for {_names(self._outside(1))})"
        )

    def _device_refusal(self, running: int) -> str:
        """A budget that the device has no room for; what is left may be too little for the load as well."""
        outside = self._outside(running)
        beside = f" beside {readable(self._outside_bytes(running))} for {_names(outside)}" if outside else ""
        fact = (
            f"a cache budget of {readable(self._budget(running))}{beside} does not fit the device's "
            f"{readable(self._free_bytes)} of free memory"
        )
        left = max((self._free_bytes - self._outside_bytes(running)) // MIB * MIB, 0)
        ways = _fewer(self._most)
        if left and self._fits({"cache.budget_bytes": left}):
            ways.append(f"set cache.budget_bytes to {left}")
        elif left:
            ways += ways_out(self._room(running), self._fits, {"cache.budget_bytes": left})
        return f"{fact}: {_either(ways)}"


def _fewer(most: int) -> list[str]:
    return [f"set scheduler.max_running to {most} or less, as at most {most} fit"] if most else []


def _either(ways: list[str]) -> str:
    """The ways out as one clause; each of them is enough."""
    return ", or ".join(ways) or "nothing that a plan may change makes room, so take a smaller model or a larger device"


def _names(terms: list[Term]) -> str:
    return ", ".join(term.name for term in terms)


def _largest(fits: Callable[[int], bool]) -> int:
    """The largest n up to `MOST_RUNNING` that fits, 0 when 1 does not; `fits` must not become true again."""
    low, high = 0, MOST_RUNNING + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _line(name: str, num_bytes: int, note: str) -> str:
    return f"{name:<20} {readable(num_bytes):>12}  {num_bytes:>18,}  {note}"
