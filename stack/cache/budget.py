"""One equation for all memory of an instance: bytes in, pages, slots and the running limit out.

    slots(n) + rings(n) + snapshots(n) + workspace + pages(n) <= budget        n running requests

The running limit is the largest n that fits the planned load (`cache.expected_*`); what is left over becomes pages.
With `pool_split: auto` a fixed share goes to slots instead, whatever the load. Loads no weights and touches no device.
"""

from collections.abc import Callable
from dataclasses import dataclass

from stack.cache.layout import ITEM_BYTES, CacheLayout, cache_layout, geometries
from stack.cache.load import Load, Term
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
    def max_total_tokens(self) -> int:
        """Tokens that the pages hold."""
        return self.num_pages * self.page_size

    @property
    def max_context(self) -> int:
        """Tokens of the longest request that can be served: the model's limit, or all pages."""
        return min(self.load.max_context, self.max_total_tokens - 2 * self.load.layout.verify_width)

    def as_dict(self) -> dict[str, float | int | str]:
        """Flat and ready for JSON: counts, the planned load, and every term in bytes."""
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
            "pages_limit": self.pages_limit,
            "slots_limit": self.slots_limit,
            "planned_pages_ratio": round(self.planned_pages_ratio, 4),
            "planned_slots_ratio": round(self.planned_slots_ratio, 4),
            "planned_context": self.load.context,
            "planned_output": self.load.output,
            "planned_shared": self.load.shared,
            "layout_hash": self.load.layout.layout_hash,
        }
        return counts | {f"bytes.{term.name.replace(' ', '_')}": term.num_bytes for term in self.terms}

    def table(self) -> str:
        """Every term on a line, then what they make possible."""
        lines = [_line(term.name, term.num_bytes, term.note) for term in self.terms]
        used = sum(term.num_bytes for term in self.terms if term.is_cache)
        lines.append(_line("unused", self.budget_bytes - used, "less than one page, or beyond the wish"))
        lines.append(_line("cache budget", self.budget_bytes, "cache terms and the unused rest"))
        at = self.load
        lines.append(
            f"{self.max_running} running (+ {at.extra} in flight) at {at.context} + {at.output} tokens, "
            f"{at.shared} shared: pages {self.planned_pages_ratio:.1%}, slots {self.planned_slots_ratio:.1%} filled"
        )
        lines.append(f"{self.max_total_tokens} tokens in {self.num_pages} pages, {self.num_slots} slots")
        return "\n".join(lines)


def plan_memory(config: EngineConfig, *, free_bytes: int = 0, weights: int | None = None) -> MemoryPlan:
    """The plan of an instance from its configuration alone; `weights` is worked out from the checkpoint when None."""
    geometry, _, draft = geometries(config)
    layout = cache_layout(geometry, config, draft)
    if weights is None and config.cache.budget_bytes is None and config.model.device != "cpu":
        weights = weight_bytes(config, geometry, draft)
    return solve(geometry, layout, config, free_bytes=free_bytes, weights=weights or 0)


def solve(
    geometry: ModelGeometry,
    layout: CacheLayout,
    config: EngineConfig,
    *,
    free_bytes: int = 0,
    weights: int = 0,
) -> MemoryPlan:
    """The memory plan of an instance whose device has `free_bytes` before weights are loaded.

    `free_bytes` and `weights` (bytes) matter only without `cache.budget_bytes`. Raises CapacityError, with the largest
    feasible numbers, when not even one request of the planned load fits or `scheduler.max_running` is out of reach.
    """
    solver = _Solver(geometry, layout, config, free_bytes, weights)
    return solver.auto() if config.cache.pool_split == "auto" else solver.solved()


class _Solver:
    def __init__(
        self, geometry: ModelGeometry, layout: CacheLayout, config: EngineConfig, free_bytes: int, weights: int
    ) -> None:
        self._geometry = geometry
        self._config = config
        self._free_bytes = free_bytes
        self._weights = weights
        self._load = Load.of(layout, config, geometry.max_context)

    def solved(self) -> MemoryPlan:
        """The most requests that fit, the rest in pages; a wished limit is met or refused."""
        most = _largest(self._fits)
        wish = self._config.scheduler.max_running
        if most == 0 or (wish is not None and wish > most):
            raise CapacityError(self._refusal(wish or 1, most))
        running = wish or most
        return self._plan(running, self._load.num_slots(running), self._load.num_live_slots(running))

    def auto(self) -> MemoryPlan:
        """A fixed share for slots, whatever the load; the running limit is what both pools can hold."""
        load, share = self._load, self._config.cache.auto_state_share
        by_slots = _largest(lambda n: load.state_bytes(n) <= share * self._rest(n))
        pages = int((1 - share) * self._rest(1)) // load.layout.page_bytes - 1
        by_pages = (pages - load.shared_pages) // load.private_pages - load.extra
        most = min(by_slots, by_pages)
        wish = self._config.scheduler.max_running
        if most <= 0 or (wish is not None and wish > most):
            raise CapacityError(self._refusal(wish or 1, max(most, 0)))
        return self._plan(wish or most, load.num_slots(by_slots), load.num_live_slots(by_slots), pages)

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
            pages_limit=(num_pages - load.shared_pages) // load.private_pages - load.extra,
            slots_limit=num_live // self._config.cache.slots_per_request - load.extra,
            planned_pages_ratio=load.num_pages(running) / num_pages,
            planned_slots_ratio=load.num_live_slots(running) / num_live,
            load=load,
            terms=tuple(terms),
        )

    def _fits(self, running: int) -> bool:
        load = self._load
        pages = (load.num_pages(running) + 1) * load.layout.page_bytes
        return load.state_bytes(running) + pages <= self._rest(running)

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
        return int(cache.mem_fraction * self._free_bytes) - sum(term.num_bytes for term in self._outside(running))

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

    def _refusal(self, wish: int, most: int) -> str:
        load, budget = self._load, self._budget(1)
        needed = load.state_bytes(wish) + (load.num_pages(wish) + 1) * load.layout.page_bytes + self._workspace(1)
        asked = f"{wish} running request{'s' if wish > 1 else ''} of {load.context} + {load.output} tokens"
        if most:
            way = f"at most {most} fit: set scheduler.max_running to {most} or less (null takes what fits)"
        else:
            way = f"{self._largest_context()}; raise cache.budget_bytes or cache.mem_fraction"
        return f"{asked} need {needed / GIB:.2f} GiB, the cache budget is {budget / GIB:.2f} GiB; {way}"

    def _largest_context(self) -> str:
        load = self._load
        pages = (self._rest(1) - load.state_bytes(1)) // load.layout.page_bytes - 1
        tokens = pages // (1 + load.extra) * load.layout.page_size - load.output - 2 * load.layout.verify_width
        if tokens <= 0:
            return "not even the slots of one request fit"
        return f"one request fits with cache.expected_context up to {tokens}"


def _largest(fits: Callable[[int], bool]) -> int:
    """The largest n up to `MOST_RUNNING` that fits, 0 when 1 does not; `fits` must not become true again."""
    low, high = 0, MOST_RUNNING + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _line(name: str, num_bytes: int, note: str) -> str:
    return f"{name:<20} {num_bytes / GIB:10.3f} GiB  {num_bytes:>16,}  {note}"
