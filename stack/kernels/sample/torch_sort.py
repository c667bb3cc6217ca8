"""Sampling by one stable sort of each row; runs on every device without a host synchronisation.

T rows, V tokens.
"""

import torch
from torch import Tensor

from stack.kernels.philox import uniforms

__all__ = ["filtered_probs", "sample", "uniforms"]


def sample(
    logits_TV: Tensor, temperature_T: Tensor, top_k_T: Tensor, top_p_T: Tensor, min_p_T: Tensor, uniform_T: Tensor
) -> Tensor:
    """The chosen token of each row, int64 [T]."""
    greedy_T = logits_TV.argmax(1)
    is_greedy_T = _is_greedy(temperature_T, top_k_T)
    if logits_TV.device.type == "cpu" and bool(is_greedy_T.all()):
        return greedy_T
    kept_TV, ids_TV = _kept(logits_TV, temperature_T, top_k_T, top_p_T, min_p_T)
    cumulative_TV = kept_TV.cumsum(1)
    exceeds_TV = cumulative_TV > uniform_T.double()[:, None] * cumulative_TV[:, -1:]
    drawn_T = ids_TV.gather(1, exceeds_TV.int().argmax(1, keepdim=True))[:, 0]
    return torch.where(is_greedy_T, greedy_T, drawn_T)


def filtered_probs(
    logits_TV: Tensor, temperature_T: Tensor, top_k_T: Tensor, top_p_T: Tensor, min_p_T: Tensor
) -> Tensor:
    """The distribution that `sample` draws from, FP32 [T, V]; one-hot for greedy rows."""
    kept_TV, ids_TV = _kept(logits_TV, temperature_T, top_k_T, top_p_T, min_p_T)
    drawn_TV = torch.zeros_like(kept_TV).scatter_(1, ids_TV, kept_TV / kept_TV.sum(1, keepdim=True))
    greedy_TV = torch.zeros_like(drawn_TV).scatter_(1, logits_TV.argmax(1, keepdim=True), 1.0)
    return torch.where(_is_greedy(temperature_T, top_k_T)[:, None], greedy_TV, drawn_TV).float()


def _is_greedy(temperature_T: Tensor, top_k_T: Tensor) -> Tensor:
    return (temperature_T == 0) | (top_k_T == 1)


def _kept(
    logits_TV: Tensor, temperature_T: Tensor, top_k_T: Tensor, top_p_T: Tensor, min_p_T: Tensor
) -> tuple[Tensor, Tensor]:
    """Probabilities in FP64 in descending order, zero where filtered out, and their token ids."""
    heat_T1 = torch.where(temperature_T > 0, temperature_T, 1.0)[:, None]
    p_TV = torch.softmax(logits_TV.double() / heat_T1, 1)
    p_TV, ids_TV = torch.sort(p_TV, dim=1, descending=True, stable=True)
    rank_V = torch.arange(p_TV.shape[1], device=p_TV.device)
    p_TV = torch.where((rank_V < top_k_T[:, None]) | (top_k_T[:, None] < 0), p_TV, 0.0)
    before_TV = p_TV.cumsum(1) - p_TV
    p_TV = torch.where((before_TV < top_p_T[:, None] * p_TV.sum(1, keepdim=True)) | (rank_V == 0), p_TV, 0.0)
    return torch.where(p_TV >= min_p_T[:, None] * p_TV[:, :1], p_TV, 0.0), ids_TV
