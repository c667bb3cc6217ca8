"""Lengths around the chunk of 64, with and without an earlier state, decays from none to the strongest, padding."""

import torch
from torch.nn import functional

from stack.kernels.cases import BOTH, Call, Case, Draw, Packing

HEADS, WIDTH = 4, 128


def _requests(
    name: str,
    prefixes: list[int],
    lens: list[int],
    padding: int = 0,
    *,
    decay: float = -2.0,
    state_dtype: torch.dtype = torch.float32,
) -> Case:
    def build(draw: Draw) -> Call:
        packing = Packing.of(draw, prefixes, lens, padding=padding)
        rows = sum(lens) + padding
        states = draw.pool(len(lens) + 1, HEADS, WIDTH, WIDTH, dtype=state_dtype)
        for request, prefix in enumerate(prefixes):
            if prefix == 0:
                states[request + 1] = float("nan")
        q, k = (functional.normalize(draw.normal(rows, HEADS, WIDTH).float(), dim=-1).to(draw.dtype) for _ in "qk")
        args = (q * WIDTH**-0.5, k, draw.normal(rows, HEADS, WIDTH), draw.normal(rows, HEADS, WIDTH))
        gates = (draw.normal(rows, HEADS), draw.normal(HEADS, std=0.5, dtype=torch.float32))
        memory = (draw.normal(HEADS, WIDTH, mean=decay, dtype=torch.float32), states, packing.slot_R, packing.start_R1)
        has_state = torch.tensor([*(prefix > 0 for prefix in prefixes), *([False] if padding else [])])
        lengths = (*lens, *([0] if padding else []))
        options = {"lower_bound": -5.0, "extend_lens": lengths}
        return Call((*args, *gates, *memory, has_state.to(draw.device)), options, written=(states,))

    return Case(name, build, dtypes=BOTH, float32=2e-5 if state_dtype == torch.float32 else 0.02, bfloat16=0.02)


CASES = (
    _requests("1", [0], [1]),
    _requests("64", [0], [64]),
    _requests("ragged", [0, 64, 0, 7], [63, 65, 130, 1]),
    _requests("padded", [0, 128], [70, 20], padding=6),
    _requests("no_decay", [64], [200], decay=-12.0),
    _requests("strongest_decay", [64], [200], decay=12.0),
    _requests("bf16_state", [64], [100], state_dtype=torch.bfloat16),
)
