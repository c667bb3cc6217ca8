"""A runner without a device: it checks every plan as a device would suffer it, and invents tokens.

It keeps its own idea of each slot's length, page table and pages, so a plan that writes outside a request's pages,
hands a page to two writers, or trusts a length it cannot know, fails an assertion.
"""

from dataclasses import dataclass

from stack.core.plan import StepPlan, StepResult


@dataclass
class Row:
    length: int
    limit: int
    generated: int
    table: dict[int, int]


class ScriptedRunner:
    """Runs plans at once; results wait until they are collected. A step is done after `num_looks` looks at it."""

    num_looks = 0

    def __init__(self, page_size: int, draw, *, width: int = 1, max_rows: int = 1 << 30, max_tokens: int = 1 << 30):
        self.page_size = page_size
        self.draw = draw
        self.width = width
        self.max_rows = max_rows
        self.max_tokens = max_tokens
        self.rows: dict[int, Row] = {}
        self.snapshots: dict[int, int] = {}
        self.saved: dict[int, tuple[int, set[int]]] = {}
        self.kinds: list[str] = []
        self.plans: list[StepPlan] = []

    def launch(self, plan: StepPlan):
        self._prepare(plan)
        if plan.kind == "prefill":
            tokens = [self._prefill(row) for row in plan.prefill]
            assert sum(len(row.token_ids) for row in plan.prefill) <= self.max_tokens
        else:
            assert len(set(plan.decode_slots)) == len(plan.decode_slots) <= self.max_rows
            tokens = [self._decode(slot, plan.max_context) for slot in plan.decode_slots]
        for source, target in plan.snapshots:
            self.snapshots[target] = self.rows[source].length
        self.kinds.append(plan.kind)
        self.plans.append(plan)
        return _Launched(plan, StepResult(step=plan.step, tokens=tokens, device_s=0.0), self.num_looks)

    def receive(self, slot: int, pages: list[int], length: int) -> None:
        """A transfer wrote a request's cache."""
        self.rows[slot] = Row(length, 0, 0, dict(enumerate(pages)))

    def collect(self, handle) -> StepResult:
        return handle.result

    def _prepare(self, plan: StepPlan) -> None:
        for ticket in plan.drops:
            self.saved.pop(ticket, None)
        for swap in plan.swap_outs:
            row = self._as_planned(plan, swap.slot)
            assert [row.table[i] for i in swap.indices] == swap.pages, "a swap names pages that are not the request's"
            self.saved[swap.ticket] = (row.length, set(swap.indices))
        restored: dict[int, int] = {}
        for swap in plan.swap_ins:
            length, indices = self.saved.pop(swap.ticket)
            assert set(swap.indices) <= indices, "a page comes back that never went"
            restored[swap.slot] = length
        for source, target in plan.restores:
            restored[target] = self.snapshots[source]
        for init in plan.inits:
            assert init.length == restored.get(init.slot, init.length), "a state of another length was restored"
            self.rows[init.slot] = Row(init.length, init.limit, init.generated, {})
        for slot, index, page in zip(plan.entries.slots, plan.entries.indices, plan.entries.pages, strict=True):
            assert page > 0
            self.rows[slot].table[index] = page

    def _as_planned(self, plan: StepPlan, slot: int) -> Row:
        """A slot's row with the plan's own entries: an arrival may be placed, or a page replaced, and then give way."""
        placed = [init for init in plan.inits if init.slot == slot]
        known = self.rows.get(slot)
        row = Row(placed[0].length, 0, 0, {}) if placed else Row(known.length, 0, 0, dict(known.table))
        for entry_slot, index, page in zip(plan.entries.slots, plan.entries.indices, plan.entries.pages, strict=True):
            if entry_slot == slot:
                row.table[index] = page
        return row

    def _prefill(self, chunk) -> list[int]:
        row = self.rows[chunk.slot]
        assert row.length == chunk.start, "a chunk does not begin where the last one ended"
        assert len(chunk.token_ids)
        assert chunk.ends_prompt or chunk.end % self.page_size == 0, "a chunk ends inside a page"
        self._write(row, chunk.start, chunk.end)
        row.length = chunk.end
        if not chunk.ends_prompt:
            return []
        row.generated = 1
        return [self.draw()]

    def _decode(self, slot: int, max_context: int) -> list[int]:
        row = self.rows[slot]
        self._write(row, row.length, row.length + self.width)
        assert row.length + self.width <= max_context
        count = 1 + (self.draw() % self.width if self.width > 1 else 0)
        count = min(count, max(row.limit - row.generated, 0))
        row.length += count
        row.generated += count
        return [self.draw() for _ in range(count)]

    def _write(self, row: Row, start: int, end: int) -> None:
        for position in range(start, end):
            assert position // self.page_size in row.table, f"position {position} has no page"


@dataclass
class _Launched:
    plan: StepPlan
    result: StepResult
    num_looks: int

    def is_done(self) -> bool:
        self.num_looks -= 1
        return self.num_looks < 0
