"""From none to all rows accepted, padding, by replay and by snapshot."""

import torch

from stack.core.memory import ReplayRing
from stack.kernels.cases import Call, Case, Draw

LAYERS, HEADS, WIDTH, ROWS = 3, 4, 128, 8


def _requests(name: str, slots: list[int], accepted: list[int], *, has_snapshots: bool = False) -> Case:
    def build(draw: Draw) -> Call:
        entries = len(slots) + 1
        states = draw.pool(max(slots) + 1, HEADS, LAYERS, WIDTH, WIDTH, dtype=torch.float32)
        windows = draw.pool(max(slots) + 1, HEADS, LAYERS, 3, WIDTH, 3)
        lead = (LAYERS, entries, ROWS, HEADS)
        ring = ReplayRing(
            k_NWHD=draw.normal(*lead, WIDTH),
            v_NWHD=draw.normal(*lead, WIDTH),
            g_NWHD=draw.uniform(*lead, WIDTH) * -5,
            beta_NWH=draw.uniform(*lead),
            x_NWX=draw.normal(LAYERS, entries, ROWS, 3 * HEADS * WIDTH),
        )
        snapshots = draw.normal(*lead, WIDTH, WIDTH, dtype=torch.float32) if has_snapshots else None
        rings = draw.ints([0 if slot == 0 else i + 1 for i, slot in enumerate(slots)])
        args = (states, windows, ring, draw.ints(slots), rings, draw.ints(accepted))
        return Call(args, {"snapshots_LNWHKV": snapshots}, written=(states, windows))

    return Case(name, build)


CASES = (
    _requests("one", [1], [1]),
    _requests("all_counts", [5, 2, 3, 1, 4], [0, 1, 2, 3, 8]),
    _requests("padded", [2, 0], [5, 0]),
    _requests("snapshots", [2, 1, 0], [3, 8, 0], has_snapshots=True),
)
