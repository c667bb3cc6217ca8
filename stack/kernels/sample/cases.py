"""Greedy rows and each filter alone and together; equal logits; draws near both ends."""

import torch
from torch import Tensor

from stack.kernels.cases import Call, Case, Draw

_SETTINGS = (
    (0.0, -1, 1.0, 0.0),
    (1.0, 1, 1.0, 0.0),
    (0.7, -1, 1.0, 0.0),
    (1.3, 5, 1.0, 0.0),
    (1.0, -1, 0.8, 0.0),
    (1.0, 20, 0.9, 0.1),
)


def _rows(draw: Draw) -> tuple[Tensor, ...]:
    rows = [setting for setting in _SETTINGS for _ in range(4)]
    logits = draw.normal(len(rows), 500, std=2.0, dtype=torch.float32)
    logits[:, 100:110] = logits[:, 200:210]
    temperature, top_k, top_p, min_p = zip(*rows, strict=True)
    reals = [torch.tensor(column, dtype=torch.float32, device=draw.device) for column in (temperature, top_p, min_p)]
    return logits, reals[0], draw.ints(list(top_k)), reals[1], reals[2]


def _sample(draw: Draw) -> Call:
    rows = _rows(draw)
    uniform = draw.uniform(rows[0].shape[0])
    uniform[::4] = 0.0
    return Call((*rows, uniform))


def _probs(draw: Draw) -> Call:
    return Call(_rows(draw))


CASES = (
    Case("all_settings", _sample, dtypes=(torch.float32,), is_exact=True),
    Case("distribution", _probs, dtypes=(torch.float32,), function="filtered_probs"),
)
