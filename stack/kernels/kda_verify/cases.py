"""Widths of MTP and DFlash2, padding requests, snapshots."""

import torch

from stack.core.memory import ReplayRing
from stack.kernels.cases import Call, Case, Draw
from stack.kernels.kda_decode.cases import HEADS, WIDTH, mixer_inputs


def _ring(draw: Draw, entries: int, width: int) -> ReplayRing:
    return ReplayRing(
        k_NWHD=draw.poison(entries, width, HEADS, WIDTH),
        v_NWHD=draw.poison(entries, width, HEADS, WIDTH),
        g_NWHD=draw.poison(entries, width, HEADS, WIDTH, dtype=torch.float32),
        beta_NWH=draw.poison(entries, width, HEADS, dtype=torch.float32),
        x_NWX=draw.poison(entries, width, 3 * HEADS * WIDTH),
    )


def _requests(name: str, slots: list[int], width: int, *, has_snapshots: bool = False) -> Case:
    def build(draw: Draw) -> Call:
        entries = len(slots) + 1
        states = draw.pool(max(slots) + 1, HEADS, WIDTH, WIDTH, dtype=torch.float32)
        windows = draw.pool(max(slots) + 1, HEADS, 3, WIDTH, 3)
        ring = _ring(draw, entries, width)
        snapshots = draw.poison(entries, width, HEADS, WIDTH, WIDTH, dtype=torch.float32) if has_snapshots else None
        rings = draw.ints([0 if slot == 0 else i + 1 for i, slot in enumerate(slots)])
        args = (*mixer_inputs(draw, len(slots) * width), states, windows, draw.ints(slots), rings, ring)
        written = [states, windows, ring.k_NWHD, ring.v_NWHD, ring.g_NWHD, ring.beta_NWH, ring.x_NWX]
        written += [] if snapshots is None else [snapshots]
        options = {"width": width, "lower_bound": -5.0, "snapshots_NWHKV": snapshots}
        return Call(args, options, tuple(written))

    return Case(name, build)


CASES = (
    _requests("one_of_2", [1], 2),
    _requests("scattered_of_6", [3, 1, 2], 6),
    _requests("padded_of_8", [2, 1, 0], 8),
    _requests("snapshots_of_4", [2, 0], 4, has_snapshots=True),
)
