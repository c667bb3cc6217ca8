"""One row at a time over Python floats."""

import math

import torch
from torch import Tensor

from stack.kernels.philox import uniforms

__all__ = ["filtered_probs", "sample", "uniforms"]


def sample(
    logits_TV: Tensor, temperature_T: Tensor, top_k_T: Tensor, top_p_T: Tensor, min_p_T: Tensor, uniform_T: Tensor
) -> Tensor:
    """The chosen token of each row, int64 [T]."""
    tokens = []
    for row in range(logits_TV.shape[0]):
        kept = _kept(logits_TV[row], *(float(x[row]) for x in (temperature_T, top_k_T, top_p_T, min_p_T)))
        target, total, chosen = float(uniform_T[row]) * sum(p for _, p in kept), 0.0, kept[-1][0]
        for token, p in kept:
            total += p
            if total > target:
                chosen = token
                break
        tokens.append(chosen)
    return torch.tensor(tokens, device=logits_TV.device)


def filtered_probs(
    logits_TV: Tensor, temperature_T: Tensor, top_k_T: Tensor, top_p_T: Tensor, min_p_T: Tensor
) -> Tensor:
    """The distribution that `sample` draws from, FP32 [T, V]; one-hot for greedy rows."""
    probs_TV = torch.zeros_like(logits_TV, dtype=torch.float32)
    for row in range(logits_TV.shape[0]):
        kept = _kept(logits_TV[row], *(float(x[row]) for x in (temperature_T, top_k_T, top_p_T, min_p_T)))
        for token, p in kept:
            probs_TV[row, token] = p / sum(p for _, p in kept)
    return probs_TV


def _kept(logits_V: Tensor, temperature: float, top_k: float, top_p: float, min_p: float) -> list[tuple[int, float]]:
    logits = [float(x) for x in logits_V]
    order = sorted(range(len(logits)), key=lambda token: (-logits[token], token))
    if temperature == 0 or top_k == 1:
        return [(order[0], 1.0)]
    weights = {token: math.exp((logits[token] - logits[order[0]]) / temperature) for token in order}
    kept = order if top_k < 0 else order[: int(top_k)]
    limit, seen = top_p * sum(weights[token] for token in kept), 0.0
    nucleus: list[int] = []
    for token in kept:
        if nucleus and seen >= limit:
            break
        nucleus.append(token)
        seen += weights[token]
    return [(token, weights[token]) for token in nucleus if weights[token] >= min_p * weights[nucleus[0]]]
