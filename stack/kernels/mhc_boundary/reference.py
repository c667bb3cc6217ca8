"""The contract's formulas as they stand, in FP64 inside and rounded where the contract rounds."""

import torch
from torch import Tensor

from stack.kernels.mhc_boundary.chain import then_quantized
from stack.kernels.mhc_boundary.torch_unfused import Site


def mhc_boundary(
    y_TC: Tensor | None,
    X_TNC: Tensor,
    post_TN: Tensor | None,
    comb_TNN: Tensor | None,
    site: Site,
    norm_weight_C: Tensor,
    *,
    hc_eps: float,
    norm_eps: float,
    iters: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Streams, the next sub-layer's normalised input, and what its own write-back will need."""
    streams_TNC = _write_back(y_TC, X_TNC, post_TN, comb_TNN)
    X, n = streams_TNC.double(), streams_TNC.shape[1]
    z = X.flatten(1)
    m = (z @ site.fn_MD.double().t()) / (z.square().mean(-1, keepdim=True) + norm_eps).sqrt()
    scale, base = site.scale_3.double(), site.base_M.double()
    pre = torch.sigmoid(m[:, :n] * scale[0] + base[:n]) + hc_eps
    post = 2 * torch.sigmoid(m[:, n : 2 * n] * scale[1] + base[n : 2 * n])
    comb = torch.softmax((m[:, 2 * n :] * scale[2] + base[2 * n :]).view(-1, n, n), -1) + hc_eps
    comb = comb / (comb.sum(-2, keepdim=True) + hc_eps)
    for _ in range(iters - 1):
        comb = comb / (comb.sum(-1, keepdim=True) + hc_eps)
        comb = comb / (comb.sum(-2, keepdim=True) + hc_eps)
    collapsed_TC = (pre[..., None] * X).sum(1).to(X_TNC.dtype)
    return streams_TNC, _norm(collapsed_TC, norm_weight_C, norm_eps), post.float(), comb.float()


mhc_boundary_quant = then_quantized(mhc_boundary)


def mhc_final(
    y_TC: Tensor | None,
    X_TNC: Tensor,
    post_TN: Tensor | None,
    comb_TNN: Tensor | None,
    norm_weight_C: Tensor,
    *,
    norm_eps: float,
) -> tuple[Tensor, Tensor]:
    """The normalised mean of the streams, and the mean itself."""
    _, mean_TC = mhc_mean(y_TC, X_TNC, post_TN, comb_TNN)
    return _norm(mean_TC, norm_weight_C, norm_eps), mean_TC


def mhc_mean(
    y_TC: Tensor | None, X_TNC: Tensor, post_TN: Tensor | None, comb_TNN: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The streams after the write-back, and their mean."""
    streams_TNC = _write_back(y_TC, X_TNC, post_TN, comb_TNN)
    return streams_TNC, streams_TNC.double().mean(1).to(streams_TNC.dtype)


def _norm(x_TC: Tensor, weight_C: Tensor, eps: float) -> Tensor:
    x = x_TC.double()
    return (weight_C.double() * x / (x.square().mean(-1, keepdim=True) + eps).sqrt()).to(x_TC.dtype)


def _write_back(y_TC: Tensor | None, X_TNC: Tensor, post_TN: Tensor | None, comb_TNN: Tensor | None) -> Tensor:
    if y_TC is None:
        return X_TNC
    assert post_TN is not None and comb_TNN is not None
    mixed = torch.einsum("tij,tic->tjc", comb_TNN.double(), X_TNC.double())
    return (post_TN.double()[..., None] * y_TC.double()[:, None] + mixed).to(X_TNC.dtype)
