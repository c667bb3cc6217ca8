"""The DFlash2 draft: one forward guesses a block of tokens from the target's own features. Knows no requests.

* `context_rows` turns the target's tap features of committed tokens into K and V of every draft layer; nothing else of
  the target's history is kept.
* `draft` runs the block [pending token, mask x (W - 1)] over that context and walks the candidate selector.

Static shapes, no waiting for the device: both can be captured. Embedding and head are the target's.

B requests, W rows of a block, E = W - 1 drafted slots, T rows of features, F features, H query heads, G key heads,
D head width, N groups of channels, K candidates. Formulas: the `DFlash2DraftModel` checkpoint layout.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from stack.config import KernelConfig
from stack.core import ConfigError, DraftGeometry
from stack.kernels.catalog import OPS
from stack.models.draft_context import ContextRows


@dataclass(frozen=True, slots=True)
class Drafts:
    """Drafted tokens [B, E] and, for rejection sampling, their candidates and probabilities [B, E, K]."""

    token_BE: Tensor
    ids_BEK: Tensor
    q_BEK: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class _Convolution:
    base_22C: Tensor
    projection: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layer:
    input_norm: Tensor
    post_norm: Tensor
    qkv: Tensor
    out: Tensor
    head_gain_2D: Tensor
    """The gains of the queries' norm and of the keys'."""
    gate_up: Tensor
    down: Tensor
    attention_conv: _Convolution
    mlp_conv: _Convolution


class DFlash2Draft:
    """A loaded draft. `embed_VC` and `head_VC` are the target's embedding and output head."""

    def __init__(
        self,
        geometry: DraftGeometry,
        weights: dict[str, Tensor],
        embed_VC: Tensor,
        head_VC: Tensor,
        kernels: KernelConfig,
    ) -> None:
        if geometry.vocab_size != embed_VC.shape[0]:
            raise ConfigError(
                f"the draft's vocabulary ({geometry.vocab_size}) is not the target's ({embed_VC.shape[0]}); "
                "speculation.draft_path must name a draft of this model"
            )
        self.geometry = geometry
        self._embed_VC, self._head_VC = embed_VC, head_VC
        device = "cuda" if embed_VC.is_cuda else "cpu"
        self._linear = OPS["linear"].bind(kernels.linear, device)
        self._rms_norm = OPS["rms_norm"].bind(kernels.rms_norm, device)
        self._swiglu = OPS["swiglu"].bind(kernels.swiglu, device)
        block = OPS["dflash_block"].bind(kernels.dflash_block, device)
        self._norm_rope, self._conv = block.function("norm_rope"), block.function("dynamic_conv")
        self._attention, self._walk = block.function("block_attention"), block.function("selector_walk")
        self.impls = {op.name: op.impl for op in (self._linear, self._rms_norm, self._swiglu, block)}
        self._fc, self._hidden_norm, self._norm = (weights[f"{n}.weight"] for n in ("fc", "hidden_norm", "norm"))
        selector = "candidate_selector."
        self._predecessor = weights[f"{selector}predecessor_codebook"]
        self._successor = weights[f"{selector}successor_codebook"]
        self._selector_projection = weights[f"{selector}hidden_projection.weight"]
        self._layers = [_layer(weights, f"layers.{i}.") for i in range(geometry.num_layers)]

    @classmethod
    def load(cls, folder: Path, embed_VC: Tensor, head_VC: Tensor, kernels: KernelConfig) -> "DFlash2Draft":
        """Read a draft's safetensors onto the embedding's device and dtype. Raises ConfigError."""
        geometry = DraftGeometry.from_file(folder)
        files = sorted(folder.glob("*.safetensors"))
        if not files:
            raise ConfigError(f"no safetensors in {folder}; speculation.draft_path must name a DFlash2 draft")
        weights: dict[str, Tensor] = {}
        for file in files:
            with safe_open(str(file), "pt", device=str(embed_VC.device)) as opened:
                for name in opened.keys():  # noqa: SIM118 - not a mapping
                    weights[name.removeprefix("model.")] = opened.get_tensor(name).to(embed_VC.dtype)
        try:
            return cls(geometry, weights, embed_VC, head_VC, kernels)
        except KeyError as error:
            raise ConfigError(f"the draft in {folder} lacks the tensor {error}") from None

    @classmethod
    def random(
        cls, geometry: DraftGeometry, embed_VC: Tensor, head_VC: Tensor, kernels: KernelConfig, seed: int
    ) -> "DFlash2Draft":
        """A draft with weights drawn on the embedding's device: N(0, 1/sqrt(in)) linears, norms 1, small codebooks."""
        draw = torch.Generator(device=embed_VC.device).manual_seed(seed)
        weights = {
            name: _drawn(name, shape, draw, embed_VC)
            for name, shape in draft_shapes(geometry, embed_VC.shape[1]).items()
        }
        return cls(geometry, weights, embed_VC, head_VC, kernels)

    @property
    def weight_bytes(self) -> int:
        """Bytes of the draft's own weights."""
        own = [self._fc, self._hidden_norm, self._norm, self._predecessor, self._successor, self._selector_projection]
        for layer in self._layers:
            own += [layer.input_norm, layer.post_norm, layer.qkv, layer.out, layer.head_gain_2D, layer.gate_up]
            own += [
                layer.down,
                *(t for c in (layer.attention_conv, layer.mlp_conv) for t in (c.base_22C, c.projection)),
            ]
        return sum(tensor.numel() * tensor.element_size() for tensor in own)

    def context_rows(self, taps_TF: Tensor, position_T: Tensor) -> list[tuple[Tensor, Tensor]]:
        """K (rotated) and V [T, G, D] of every layer for tokens at `position_T` with the target's features."""
        g = self.geometry
        context_TC = self._norm_rows(self._linear(taps_TF, self._fc), self._hidden_norm)
        rows = []
        for layer in self._layers:
            kv = self._linear(context_TC, layer.qkv[g.num_heads * g.head_dim :])
            k_TGD, v_TGD = kv.view(-1, 2, g.num_kv_heads, g.head_dim).unbind(1)
            rows.append((self._turned(k_TGD, layer, position_T, num_queries=0), v_TGD))
        return rows

    def draft(
        self,
        anchor_B: Tensor,
        position_B: Tensor,
        context: ContextRows,
        temperature_B: Tensor,
        uniform_BE: Tensor,
    ) -> Drafts:
        """Guess the W - 1 tokens that follow each request's pending token `anchor_B`, which stands at `position_B`."""
        g = self.geometry
        batch, width = anchor_B.shape[0], g.block_size
        position_BW = position_B[:, None] + torch.arange(width, device=position_B.device, dtype=position_B.dtype)
        ids_BW = torch.full((batch, width), g.mask_token_id, device=anchor_B.device, dtype=torch.int64)
        ids_BW[:, 0] = anchor_B
        r_TC = self._embed_VC[ids_BW.view(-1)]
        for layer, pools in zip(self._layers, context.pools, strict=True):
            r_TC = r_TC + self._attend(layer, r_TC, position_BW, pools, context)
            r_TC = r_TC + self._feed(layer, r_TC, batch)
        last_TC = self._norm_rows(r_TC, self._norm).view(batch, width, -1)[:, 1:].reshape(batch * (width - 1), -1)
        return self._choose(last_TC, anchor_B, temperature_B, uniform_BE)

    def _attend(
        self, layer: _Layer, r_TC: Tensor, position_BW: Tensor, pools: tuple[Tensor, Tensor], context: ContextRows
    ) -> Tensor:
        g = self.geometry
        batch, width = position_BW.shape
        a_TC = self._norm_rows(r_TC, layer.input_norm)
        conv, moved_BW22N = layer.attention_conv, self._moved_taps(layer.attention_conv, a_TC, batch)
        a_TC = self._mix(a_TC, conv, moved_BW22N, side=0)
        qkv_THD = self._linear(a_TC, layer.qkv).view(batch * width, -1, g.head_dim)
        qk_THD, v_TGD = qkv_THD.split((g.num_heads + g.num_kv_heads, g.num_kv_heads), dim=1)
        qk_THD = self._turned(qk_THD, layer, position_BW.reshape(-1), num_queries=g.num_heads)
        q_BWHD, k_BWGD = qk_THD.view(batch, width, -1, g.head_dim).split((g.num_heads, g.num_kv_heads), dim=2)
        out = self._attention(
            q_BWHD,
            k_BWGD,
            v_TGD.view(batch, width, g.num_kv_heads, g.head_dim),
            *pools,
            context.first_BC,
            context.second_BC,
            context.position_BC,
            position_BW,
            window=g.window,
            scale=g.head_dim**-0.5,
        )
        y_TC = self._linear(out.reshape(batch * width, -1), layer.out)
        return self._mix(y_TC, conv, moved_BW22N, side=1)

    def _feed(self, layer: _Layer, r_TC: Tensor, batch: int) -> Tensor:
        m_TC = self._norm_rows(r_TC, layer.post_norm)
        conv, moved_BW22N = layer.mlp_conv, self._moved_taps(layer.mlp_conv, m_TC, batch)
        m_TC = self._mix(m_TC, conv, moved_BW22N, side=0)
        y_TC = self._linear(self._swiglu(self._linear(m_TC, layer.gate_up), limit=None), layer.down)
        return self._mix(y_TC, conv, moved_BW22N, side=1)

    def _moved_taps(self, conv: _Convolution, n_TC: Tensor, batch: int) -> Tensor:
        """[B, W, side, tap, group]: what the sub-layer's input adds to the base kernels, per group of channels."""
        groups = n_TC.shape[-1] // self.geometry.conv_group_size
        moved: Tensor = self._linear(n_TC, conv.projection).view(batch, -1, 2, 2, groups)
        return moved

    def _mix(self, y_TC: Tensor, conv: _Convolution, moved_BW22N: Tensor, *, side: int) -> Tensor:
        """The convolution before (side 0) or behind (side 1) a sub-layer."""
        y_BWC = y_TC.view(*moved_BW22N.shape[:2], -1)
        mixed: Tensor = self._conv(y_BWC, conv.base_22C[side], moved_BW22N[:, :, side])
        return mixed.view(y_TC.shape)

    def _turned(self, x_THD: Tensor, layer: _Layer, position_T: Tensor, *, num_queries: int) -> Tensor:
        """Heads normed and rotated to their positions, queries first."""
        turned: Tensor = self._norm_rope(
            x_THD,
            layer.head_gain_2D,
            position_T,
            num_queries=num_queries,
            eps=self.geometry.rms_norm_eps,
            theta=self.geometry.rope_theta,
            norm=self._rms_norm,
        )
        return turned

    def _choose(self, last_TC: Tensor, anchor_B: Tensor, temperature_B: Tensor, uniform_BE: Tensor) -> Drafts:
        batch, drafts = uniform_BE.shape
        logits_TV = self._linear(last_TC, self._head_VC, out_dtype=torch.float32)
        unary_TK, ids_TK = torch.topk(logits_TV, self.geometry.selector_top_k, dim=-1, sorted=True)
        z_TR = self._linear(last_TC, self._selector_projection)
        ids_BEK = ids_TK.view(batch, drafts, -1)
        token_BE, q_BEK = self._walk(
            unary_TK.view(ids_BEK.shape),
            ids_BEK,
            z_TR.view(batch, drafts, -1),
            self._predecessor,
            self._successor,
            anchor_B,
            temperature_B,
            uniform_BE,
        )
        return Drafts(token_BE, ids_BEK, q_BEK)

    def _norm_rows(self, x: Tensor, weight: Tensor) -> Tensor:
        flat: Tensor = self._rms_norm(x.reshape(-1, x.shape[-1]), weight, eps=self.geometry.rms_norm_eps)
        return flat.view(x.shape)


def draft_shapes(g: DraftGeometry, target_hidden: int) -> dict[str, tuple[int, ...]]:
    """Every tensor of a draft checkpoint with its shape."""
    hidden, dim, groups = g.hidden_size, g.head_dim, g.hidden_size // g.conv_group_size
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (hidden, len(g.target_layer_ids) * target_hidden),
        "hidden_norm.weight": (hidden,),
        "norm.weight": (hidden,),
        "candidate_selector.predecessor_codebook": (g.vocab_size, g.selector_rank),
        "candidate_selector.successor_codebook": (g.vocab_size, g.selector_rank),
        "candidate_selector.hidden_projection.weight": (g.selector_rank, hidden),
    }
    for i in range(g.num_layers):
        layer: dict[str, tuple[int, ...]] = {
            "input_layernorm.weight": (hidden,),
            "post_attention_layernorm.weight": (hidden,),
            "self_attn.q_proj.weight": (g.num_heads * dim, hidden),
            "self_attn.k_proj.weight": (g.num_kv_heads * dim, hidden),
            "self_attn.v_proj.weight": (g.num_kv_heads * dim, hidden),
            "self_attn.o_proj.weight": (hidden, g.num_heads * dim),
            "self_attn.q_norm.weight": (dim,),
            "self_attn.k_norm.weight": (dim,),
            "mlp.gate_proj.weight": (g.intermediate_size, hidden),
            "mlp.up_proj.weight": (g.intermediate_size, hidden),
            "mlp.down_proj.weight": (hidden, g.intermediate_size),
        }
        for place in ("attention_conv", "mlp_conv"):
            layer[f"{place}.base_kernel"] = (2, 2, hidden)
            layer[f"{place}.kernel_projection.weight"] = (4 * groups, hidden)
        shapes |= {f"layers.{i}.{name}": shape for name, shape in layer.items()}
    return shapes


def _layer(weights: dict[str, Tensor], prefix: str) -> _Layer:
    def of(name: str) -> Tensor:
        return weights[prefix + name]

    def conv(place: str) -> _Convolution:
        return _Convolution(base_22C=of(f"{place}.base_kernel"), projection=of(f"{place}.kernel_projection.weight"))

    return _Layer(
        input_norm=of("input_layernorm.weight"),
        post_norm=of("post_attention_layernorm.weight"),
        qkv=torch.cat([of(f"self_attn.{part}_proj.weight") for part in "qkv"]),
        out=of("self_attn.o_proj.weight"),
        head_gain_2D=torch.stack([of("self_attn.q_norm.weight"), of("self_attn.k_norm.weight")]),
        gate_up=torch.cat([of("mlp.gate_proj.weight"), of("mlp.up_proj.weight")]),
        down=of("mlp.down_proj.weight"),
        attention_conv=conv("attention_conv"),
        mlp_conv=conv("mlp_conv"),
    )


def _drawn(name: str, shape: tuple[int, ...], draw: torch.Generator, like: Tensor) -> Tensor:
    if "norm" in name:
        return torch.ones(shape, device=like.device, dtype=like.dtype)
    std = shape[-1] ** -0.5 if len(shape) == 2 and "codebook" not in name else 0.3
    values = torch.empty(shape, device=like.device, dtype=torch.float32).normal_(0.0, std, generator=draw)
    return values.to(like.dtype)
