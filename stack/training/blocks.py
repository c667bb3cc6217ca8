"""The parts of a decoder layer that act on each token alone: norms, streams, MLPs, router. Differentiable.

They take whole batches of any leading shape. Coefficients of the streams, the router and norms are FP32 whatever
autocast says, as in the engine.

N streams, C channels, E experts, I inner width, J choices.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from stack.training.parameters import Scope


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Each row over its root mean square, in FP32."""
    x = x.float()
    return weight * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps))


@dataclass(frozen=True, slots=True)
class Coefficients:
    """How a sub-layer reads from and writes to the streams."""

    pre: Tensor
    post: Tensor
    comb: Tensor


def coefficients(streams: Tensor, scope: Scope, site: str, config: dict[str, Any]) -> Coefficients:
    """mHC's mapping for one site, from the streams [.., N, C]."""
    fn, base, scale = (scope[f"hc_{site}_{name}"] for name in ("fn", "base", "scale"))
    mapping = _COMPILED.get(streams.shape[1] > 1 and streams.device.type, mhc_mapping)
    return Coefficients(
        *mapping(
            streams.float(), fn, base, scale, config["hc_eps"], config["rms_norm_eps"], config["hc_sinkhorn_iters"]
        )
    )


_COMPILED: dict[Any, Any] = {}
"""Device type -> the compiled mapping for whole sequences; single steps take the plain one."""


def compile_mapping(device: torch.device, config: dict[str, Any]) -> str:
    """Try to compile the mapping, whose small operations are most of a step's launches; says what came of it."""
    n, width = config["hc_mult"], config["hidden_size"]
    torch._dynamo.config.suppress_errors = True  # a later specialisation that fails runs as it is written
    compiled = torch.compile(mhc_mapping, dynamic=True)
    streams = torch.randn(2, 8, n, width, device=device, requires_grad=True)
    fn = torch.randn((2 + n) * n, n * width, device=device)
    try:
        out = compiled(streams, fn, fn[:, 0].clone(), fn[0, :3].clone(), 1e-6, 1e-5, config["hc_sinkhorn_iters"])
        torch.stack([part.sum() for part in out]).sum().backward()
    except Exception as error:  # a missing compiler shows in many ways, and none of them matters here
        return f"no: {type(error).__name__}: {str(error).splitlines()[0][:200]}"
    _COMPILED[device.type] = compiled
    return "yes"


def mhc_mapping(
    streams: Tensor, fn: Tensor, base: Tensor, scale: Tensor, hc_eps: float, norm_eps: float, iters: int
) -> tuple[Tensor, Tensor, Tensor]:
    """pre [.., N], post [.., N] and the mixing matrix [.., N, N] by Sinkhorn's iteration."""
    n = streams.shape[-2]
    flat = streams.flatten(-2)
    with torch.autocast(flat.device.type, enabled=False):
        mapped = functional.linear(flat, fn) * torch.rsqrt(flat.square().mean(-1, keepdim=True) + norm_eps)
    pre = torch.sigmoid(mapped[..., :n] * scale[0] + base[:n]) + hc_eps
    post = 2 * torch.sigmoid(mapped[..., n : 2 * n] * scale[1] + base[n : 2 * n])
    comb = torch.softmax((mapped[..., 2 * n :] * scale[2] + base[2 * n :]).unflatten(-1, (n, n)), -1) + hc_eps
    comb = comb / (comb.sum(-2, keepdim=True) + hc_eps)
    for _ in range(iters - 1):
        comb = comb / (comb.sum(-1, keepdim=True) + hc_eps)
        comb = comb / (comb.sum(-2, keepdim=True) + hc_eps)
    return pre, post, comb


def read(streams: Tensor, c: Coefficients) -> Tensor:
    """A sub-layer's input [.., C] before its norm."""
    return (c.pre[..., None] * streams).sum(-2)


def write(streams: Tensor, c: Coefficients, output: Tensor) -> Tensor:
    """Streams behind a sub-layer."""
    with torch.autocast(streams.device.type, enabled=False):
        mixed = torch.einsum("...ij,...ic->...jc", c.comb, streams.float())
    return c.post[..., None] * output[..., None, :].float() + mixed


def swiglu(gate: Tensor, up: Tensor, limit: float | None) -> Tensor:
    """The gated product, clamped where there is a limit."""
    if limit is not None:
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return functional.silu(gate) * up


def dense_mlp(x: Tensor, scope: Scope, limit: float | None) -> Tensor:
    """Gate, up and down."""
    gate, up = functional.linear(x, scope["gate_proj.weight"]), functional.linear(x, scope["up_proj.weight"])
    return functional.linear(swiglu(gate, up, limit), scope["down_proj.weight"])


def mixture(x: Tensor, scope: Scope, config: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Routed and shared experts' sum, and how many rows chose each expert [E].

    Every expert runs on every row, with weight zero where it was not chosen: one product for all of them.
    """
    limit, inner = config["swiglu_limit"], config["moe_intermediate_size"]
    weight, chosen = _route(x, scope, config)
    gate_up = functional.linear(x, scope["experts.gate_up"].flatten(0, 1)).unflatten(-1, (-1, 2, inner))
    hidden = swiglu(gate_up[..., 0, :], gate_up[..., 1, :], limit) * weight[..., None]
    down = scope["experts.down"].permute(1, 0, 2).flatten(1)
    routed = functional.linear(hidden.flatten(-2).to(gate_up.dtype), down)
    return routed + dense_mlp(x, scope.within("shared_experts."), limit), chosen


def _route(x: Tensor, scope: Scope, config: dict[str, Any]) -> tuple[Tensor, Tensor]:
    with torch.autocast(x.device.type, enabled=False):
        score = torch.sigmoid(functional.linear(x.float(), scope["gate.weight"]))
    best = torch.topk(score.detach() + scope["gate.e_score_correction_bias"], config["num_experts_per_tok"], -1).indices
    mask = torch.zeros_like(score).scatter_(-1, best, 1.0)
    kept = score * mask
    if config["norm_topk_prob"]:
        kept = kept / (kept.sum(-1, keepdim=True) + 1e-20)
    return kept * config["routed_scaling_factor"], mask.flatten(0, -2).sum(0)
