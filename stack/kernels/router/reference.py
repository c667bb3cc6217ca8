"""One row at a time in FP64, experts by Python's sort."""

import torch
from torch import Tensor


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
    count, device = x_TC.shape[0], x_TC.device
    ids_TK = torch.full((count, top_k), -1, dtype=torch.int32, device=device)
    weights_TK = torch.zeros(count, top_k, dtype=torch.float32, device=device)
    for row in range(count if num_rows is None else min(count, int(num_rows))):
        score = (weight_EC.double() @ x_TC[row].double()).sigmoid()
        choice = (score + bias_E.double()).tolist()
        ids = sorted(range(len(choice)), key=lambda expert: (-choice[expert], expert))[:top_k]
        weights = score[ids]
        if normalize:
            weights = weights / (weights.sum() + 1e-20)
        ids_TK[row] = torch.tensor(ids, dtype=torch.int32, device=device)
        weights_TK[row] = (weights * scaling).float()
    return ids_TK, weights_TK
