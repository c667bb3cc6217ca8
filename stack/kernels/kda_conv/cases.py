"""Requests of 1, 2, 3 and many rows, with and without an earlier window, a padding request, padding rows."""

import torch

from stack.kernels.cases import Call, Case, Draw, Packing

HEADS, WIDTH = 4, 128


def _requests(prefixes: list[int], lens: list[int], padding: int = 0) -> Case:
    def build(draw: Draw) -> Call:
        packing = Packing.of(draw, prefixes, lens, padding=padding)
        channels = 3 * HEADS * WIDTH
        windows = draw.pool(len(lens) + 1, HEADS, 3, WIDTH, 3)
        for request, prefix in enumerate(prefixes):
            if prefix == 0:
                windows[request + 1] = float("nan")
        has_state = torch.tensor([*(prefix > 0 for prefix in prefixes), *([False] if padding else [])])
        rows = draw.normal(sum(lens) + padding, channels + 260)[:, :channels]
        args = (rows, draw.normal(channels, 4, std=0.5, dtype=torch.float32), windows, packing.slot_R, packing.start_R1)
        packed = (packing.request_T, packing.position_T, has_state.to(draw.device))
        return Call((*args, *packed), written=(windows,))

    return Case(f"{'+'.join(map(str, lens))}{'_padded' if padding else ''}", build)


CASES = (
    _requests([0], [1]),
    _requests([0], [300]),
    _requests([5, 0, 64, 0], [1, 2, 3, 70]),
    _requests([7, 0], [65, 5], padding=6),
)
