"""A ring of the window and rows in pages show a draft the same context, whatever was committed and rejected."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stack.core.memory import DraftLayer
from stack.models.draft_context import DraftContext

WINDOW, PAGE, PAGES, SLOTS, G, D = 8, 4, 40, 3, 1, 2


def _contexts():
    ring = DraftLayer(k=torch.zeros(SLOTS, WINDOW, G, D), v=torch.zeros(SLOTS, WINDOW, G, D))
    full = DraftLayer(k=torch.zeros(PAGES, PAGE, G, D), v=torch.zeros(PAGES, PAGE, G, D))
    return DraftContext((ring,), WINDOW, "ring"), DraftContext((full,), WINDOW, "full")


def _row(slot: int, position: int) -> torch.Tensor:
    return torch.tensor([slot * 1000.0 + position, -float(position)]).view(1, G, D)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 2), st.integers(0, 5)), max_size=30))
def test_ring_and_pages_hold_the_last_window_of_committed_rows(steps):
    table = torch.zeros(SLOTS, 12, dtype=torch.int32)
    table[1], table[2] = torch.arange(1, 13), torch.arange(20, 32)
    contexts, length = _contexts(), [0, 0, 0]
    for slot, kept in steps:
        if length[slot] + 6 > 12 * PAGE:
            continue
        rows = torch.cat([_row(slot, length[slot] + i) for i in range(6)])
        position = torch.arange(length[slot], length[slot] + 6)
        keep = torch.arange(6) < kept
        for context in contexts:
            context.write([(rows, rows)], torch.full((6,), slot), position, keep, table)
        length[slot] += kept
    slots = torch.tensor([1, 2])
    for context in contexts:
        found = context.read(slots, torch.tensor(length[1:]), table)
        for i, slot in enumerate((1, 2)):
            want = set(range(max(0, length[slot] - WINDOW), length[slot]))
            rows = found.pools[0][0][found.first_BC, found.second_BC]
            seen = {int(p): rows[i, c] for c, p in enumerate(found.position_BC[i]) if p >= 0}
            assert set(seen) == want
            assert all(torch.equal(row, _row(slot, p)[0]) for p, row in seen.items())
        assert not context.layers[0].k[0].any(), "the sink stays zero"
