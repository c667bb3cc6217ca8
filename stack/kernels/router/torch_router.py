"""Scores in fixed row tiles, experts by a stable sort (lowest id first on ties); runs on every device."""

import torch
from torch import Tensor

from stack.kernels.delta_rule import row_sigmoid
from stack.kernels.row_tiles import tiled_matmul


def router(
    x_TC: Tensor,
    weight_EC: Tensor,
    bias_E: Tensor,
    *,
    top_k: int,
    scaling: float,
    normalize: bool,
    num_rows: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Expert ids int32 [T, K] and weights FP32 [T, K], best first."""
    product = tiled_matmul(x_TC, weight_EC) if x_TC.device.type == "cpu" else x_TC.float() @ weight_EC.float().t()
    score_TE = row_sigmoid(product)
    ids_TK = torch.sort(score_TE + bias_E.float(), dim=1, descending=True, stable=True).indices[:, :top_k]
    chosen_TK = score_TE.gather(1, ids_TK)
    if normalize:
        first, *rest = chosen_TK.unbind(1)
        total = first + 0.0
        for column in rest:
            total = total + column
        chosen_TK = chosen_TK / (total[:, None] + 1e-20)
    ids_TK, weights_TK = ids_TK.int(), chosen_TK * scaling
    if num_rows is None:
        return ids_TK, weights_TK
    is_padding = (torch.arange(x_TC.shape[0], device=x_TC.device) >= num_rows)[:, None]
    return ids_TK.masked_fill(is_padding, -1), weights_TK.masked_fill(is_padding, 0.0)
