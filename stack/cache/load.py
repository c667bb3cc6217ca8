"""What a number of running requests needs of pages, slots, rings and snapshots: the terms of the memory equation.

Pure arithmetic over a layout and a configuration; knows no budget. Counts leave out the sinks, bytes include them.
"""

from dataclasses import dataclass

from stack.cache.layout import SCALE_BYTES, CacheLayout
from stack.config import EngineConfig


@dataclass(frozen=True, slots=True)
class Term:
    """One line of the memory plan."""

    name: str
    num_bytes: int
    note: str
    is_cache: bool = True
    """Whether it is paid from the cache budget, or lies outside it (weights, graphs, activations)."""


def readable(num_bytes: int) -> str:
    """Bytes in the unit that fits them: `14.00 GiB`, `56.00 MiB`, `132 B`."""
    for unit, scale in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if abs(num_bytes) >= scale:
            return f"{num_bytes / scale:.2f} {unit}"
    return f"{num_bytes} B"


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The load that an instance plans for, and what each request of it costs."""

    layout: CacheLayout
    config: EngineConfig
    context: int
    """Prompt tokens of a request."""
    output: int
    """Tokens that a request generates here."""
    shared: int
    """Prompt tokens, whole pages, that all requests have in common and that are stored once."""
    max_context: int
    """Tokens of the longest request that the model takes."""
    notes: tuple[str, ...] = ()
    """What is planned otherwise than configured, and why; a sentence each."""

    @classmethod
    def of(cls, layout: CacheLayout, config: EngineConfig, max_context: int) -> "Load":
        """The configured load, cut to what the model can take, with a note. A prefill instance generates nothing worth
        a page."""
        cache = config.cache
        output = 0 if config.role == "prefill" else min(cache.expected_output, max_context - 1)
        context = min(cache.expected_context, max_context - output)
        shared = min(cache.expected_shared, context) if cache.prefix != "none" else 0
        limit = f"the model takes {max_context} tokens, prompt and output together"
        cuts = [("expected_context", context, limit)]
        cuts += [("expected_output", output, limit)] if config.role != "prefill" else []
        cuts += [("expected_shared", shared, "no more of a prompt can be shared")] if cache.prefix != "none" else []
        return cls(
            layout=layout,
            config=config,
            context=context,
            output=output,
            shared=shared // layout.page_size * layout.page_size,
            max_context=max_context,
            notes=tuple(
                f"cache.{name} {getattr(cache, name)} is planned as {planned}: {why}"
                for name, planned, why in cuts
                if planned < getattr(cache, name)
            ),
        )

    @property
    def extra(self) -> int:
        """Requests beyond the running limit that hold memory while their cache arrives."""
        return self.config.scheduler.extra_inflight if self.config.role == "decode" else 0

    @property
    def shared_pages(self) -> int:
        """Pages of the common prefix."""
        return self.shared // self.layout.page_size

    @property
    def private_pages(self) -> int:
        """Pages of one request alone: its suffix, its output, and the reserve of two verifies. At least one, as a hit
        leaves a token to compute even where all of a prompt is shared."""
        reserve = 2 * self.layout.verify_width if self.output else 0
        return max(1, -(-(self.context - self.shared + self.output + reserve) // self.layout.page_size))

    def num_pages(self, running: int) -> int:
        """Pages that `running` requests and those in flight need."""
        return self.shared_pages + (running + self.extra) * self.private_pages

    def num_live_slots(self, running: int) -> int:
        """Slots of running requests and those in flight."""
        return (running + self.extra) * self.config.cache.slots_per_request

    def num_slots(self, running: int) -> int:
        """Slots, those that keep states for later prompts included."""
        live = self.num_live_slots(running)
        return live + self._num_kept_states(live)

    def num_ring_entries(self, running: int) -> int:
        """Entries of the replay ring."""
        if self.layout.verify_width == 1 or self.config.role == "prefill":
            return 0
        return running if self.config.cache.replay_ring == "per_running" else self.num_slots(running)

    def num_snapshot_entries(self, running: int) -> int:
        """Entries with a state after every row of a verify."""
        has_snapshots = self.config.speculation.commit == "snapshot"
        return self.num_ring_entries(running) if has_snapshots else 0

    def index_workspace_bytes(self, most: int) -> int:
        """FP32 index scores of one pass of the planned load, tiled beyond `most`; at least one row of any context."""
        planned = self._score_row_bytes(self.context + self.output + self.layout.verify_width)
        rows = self.config.scheduler.max_prefill_tokens
        if self.config.role == "decode":
            rows = max(self.config.graphs.decode_batch_sizes, default=1) * self.layout.verify_width
        return max(min(rows * planned, most), self._score_row_bytes(self.max_context))

    def state_bytes(self, running: int) -> int:
        """Slots, rings and snapshots together."""
        return sum(term.num_bytes for term in self.state_terms(running))

    def state_terms(self, running: int) -> list[Term]:
        """What does not grow with the context."""
        at, slots = self.layout, self.num_slots(running) + 1
        parts = at.slot_parts
        terms = [Term(name, slots * parts[part], f"{slots} slots") for part, name in _SLOT_TERMS.items() if parts[part]]
        for name, count, size in (
            ("replay ring", self.num_ring_entries(running), at.ring_entry_bytes),
            ("verify snapshots", self.num_snapshot_entries(running), at.snapshot_entry_bytes),
        ):
            if count:
                terms.append(Term(name, (count + 1) * size, f"{count + 1} entries of {at.verify_width} rows"))
        return terms

    def page_terms(self, num_pages: int) -> list[Term]:
        """Target and draft rows of all pages, and the index rows that a layout as published leaves empty."""
        at, pages, parts = self.layout, num_pages + 1, self.layout.page_parts
        empty, draft = parts["empty_index"], parts["draft"]
        note = f"{pages} pages of {at.page_size} tokens"
        terms = [Term("target KV", pages * (at.page_bytes - empty - draft), note)]
        if empty:
            rows = f"as published, one index row a token is held; pooled keys fill 1 in {at.kpool}"
            terms.append(Term("empty index rows", pages * empty, rows))
        return terms + ([Term("draft KV", pages * draft, note)] if draft else [])

    def _score_row_bytes(self, context: int) -> int:
        return SCALE_BYTES * -(-context // self.layout.kpool)

    def _num_kept_states(self, live: int) -> int:
        if self.config.cache.prefix != "hybrid_radix":
            return 0
        kept = self.config.cache.snapshot_slots
        return -(-live // 3) if kept is None else kept


_SLOT_TERMS = {
    "state": "recurrent states",
    "conv": "convolution windows",
    "tails": "index tails",
    "draft": "draft rings",
    "padding": "slot padding",
}
