"""One request, many, padding between them, a BF16 state."""

from typing import Any

import torch

from stack.kernels.cases import Call, Case, Draw

HEADS, WIDTH = 4, 128


def mixer_inputs(draw: Draw, rows: int) -> tuple[Any, ...]:
    """x, f, b and the layer's parameters, as kda_decode and kda_verify take them."""
    channels = 3 * HEADS * WIDTH
    fused = draw.normal(rows, channels + 260)
    inputs = (fused[:, :channels], draw.normal(rows, HEADS, WIDTH), fused[:, channels : channels + HEADS])
    parameters = (
        draw.normal(channels, 4, std=0.5, dtype=torch.float32),
        draw.normal(HEADS, std=0.5, dtype=torch.float32),
        draw.normal(HEADS, WIDTH, mean=-2.0, dtype=torch.float32),
    )
    return (*inputs, *parameters)


def _requests(name: str, slots: list[int], state_dtype: torch.dtype = torch.float32) -> Case:
    def build(draw: Draw) -> Call:
        states = draw.pool(max(slots) + 2, HEADS, WIDTH, WIDTH, dtype=state_dtype)
        windows = draw.pool(max(slots) + 2, HEADS, 3, WIDTH, 3)
        args = (*mixer_inputs(draw, len(slots)), states, windows, draw.ints(slots))
        return Call(args, {"lower_bound": -5.0}, written=(states, windows))

    return Case(name, build, float32=2e-5 if state_dtype == torch.float32 else 0.02)


CASES = (
    _requests("one", [1]),
    _requests("scattered", [5, 2, 9, 1, 3]),
    _requests("padded", [4, 2, 0, 0]),
    _requests("bf16_state", [3, 1], torch.bfloat16),
)
