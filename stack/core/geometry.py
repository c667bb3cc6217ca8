"""The shape of a model, read from its `config.json`; every byte count and every buffer follows from it.

Knows the checkpoint's field names (design of GLM-5.3-Flash, `glm5_next`) and nothing of tensors.
"""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from stack.core.errors import ConfigError

LayerKind = Literal["kda", "dsa"]
MlpKind = Literal["dense", "moe"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelGeometry:
    """Sizes of one model. Counts are of elements, not bytes; layers are numbered from 0."""

    vocab_size: int
    hidden_size: int
    layer_kinds: tuple[LayerKind, ...]
    mlp_kinds: tuple[MlpKind, ...]
    dense_intermediate_size: int
    num_experts: int
    experts_per_token: int
    expert_intermediate_size: int
    shared_intermediate_size: int
    routed_scaling_factor: float
    norm_topk_prob: bool
    swiglu_limit: float
    rms_norm_eps: float
    num_heads: int
    q_lora_rank: int
    kv_lora_rank: int
    qk_head_dim: int
    v_head_dim: int
    index_num_heads: int
    index_head_dim: int
    index_topk: int
    index_kpool: int
    kda_num_heads: int
    kda_head_dim: int
    conv_kernel_size: int
    gate_lower_bound: float
    num_streams: int
    sinkhorn_iters: int
    hc_eps: float
    num_mtp_layers: int
    max_context: int
    eos_token_ids: tuple[int, ...]
    is_fp8: bool = False
    """Whether the checkpoint stores the linears of MLPs, experts and DSA layers as block-scaled FP8."""

    @property
    def num_layers(self) -> int:
        """Target layers, the MTP layer not counted."""
        return len(self.layer_kinds)

    @property
    def kda_layers(self) -> tuple[int, ...]:
        """Layer numbers with linear attention, in order; a state slot holds one state for each."""
        return tuple(i for i, kind in enumerate(self.layer_kinds) if kind == "kda")

    @property
    def dsa_layers(self) -> tuple[int, ...]:
        """Layer numbers with sparse attention, in order; a page holds rows for each, then for the MTP layer."""
        return tuple(i for i, kind in enumerate(self.layer_kinds) if kind == "dsa")

    @property
    def num_paged_layers(self) -> int:
        """DSA layers whose rows live in a page: the target's, then the MTP layer's."""
        return len(self.dsa_layers) + self.num_mtp_layers

    @property
    def index_width(self) -> int:
        """Most tokens a query attends to: `index_topk` plus the open tail (2,051 for the release)."""
        return self.index_topk + self.index_kpool - 1

    @property
    def conv_channels(self) -> int:
        """Channels of the short convolution: q, k and v of every head."""
        return 3 * self.kda_num_heads * self.kda_head_dim

    def truncated(self, num_layers: int | None) -> "ModelGeometry":
        """The first `num_layers` layers (None keeps all). Raises ConfigError for a number the model does not have."""
        if num_layers is None:
            return self
        if not 1 <= num_layers <= self.num_layers:
            raise ConfigError(f"model.num_layers must lie between 1 and {self.num_layers}, not {num_layers}")
        kinds, mlps = self.layer_kinds[:num_layers], self.mlp_kinds[:num_layers]
        return replace(self, layer_kinds=kinds, mlp_kinds=mlps)

    @classmethod
    def from_file(cls, path: Path) -> "ModelGeometry":
        """Read `config.json` in the folder `path` (or the file itself). Raises ConfigError when it is unusable."""
        file = path / "config.json" if path.is_dir() else path
        try:
            return cls.from_hf(json.loads(file.read_text()))
        except FileNotFoundError:
            raise ConfigError(f"no config.json in {path}; point model.path at a checkpoint folder") from None
        except json.JSONDecodeError as error:
            raise ConfigError(f"{file} is not valid JSON: {error}") from None

    @classmethod
    def from_hf(cls, config: dict[str, Any]) -> "ModelGeometry":
        """Build from a Hugging Face config, flat or under `text_config`. Raises ConfigError for a missing field."""
        text = config.get("text_config", config)
        try:
            return cls(**_fields(text), is_fp8=_is_fp8(config) or _is_fp8(text))
        except KeyError as error:
            raise ConfigError(f"the model's config.json lacks the field {error}") from None


_KINDS: dict[str, LayerKind] = {
    "linear_attention": "kda",
    "deepseek_sparse_attention": "dsa",
    "indexed_attention": "dsa",
    "full_attention": "dsa",
}


def _fields(text: dict[str, Any]) -> dict[str, Any]:
    linear = text["linear_attn_config"]
    num_layers = text["num_hidden_layers"]
    num_dense = text.get("first_k_dense_replace", 3)
    mlp_types = text.get("mlp_layer_types") or ["dense"] * num_dense + ["sparse"] * (num_layers - num_dense)
    if any(kind != "full" for kind in text.get("indexer_types") or []):
        raise ConfigError("indexer_types other than 'full' are not supported: the release has none")
    if text.get("qk_rope_head_dim", 0) != 0:
        raise ConfigError("qk_rope_head_dim must be 0: the text model has no rotary part")
    if text["index_topk"] % text["index_kpool"]:
        raise ConfigError("index_topk must be a multiple of index_kpool")
    eos = text.get("eos_token_id") or ()
    moe_size = text["moe_intermediate_size"]
    return {
        "vocab_size": text["vocab_size"],
        "hidden_size": text["hidden_size"],
        "layer_kinds": tuple(_KINDS[kind] for kind in text["layer_types"]),
        "mlp_kinds": tuple("dense" if kind == "dense" else "moe" for kind in mlp_types),
        "dense_intermediate_size": text["intermediate_size"],
        "num_experts": text["n_routed_experts"],
        "experts_per_token": text["num_experts_per_tok"],
        "expert_intermediate_size": moe_size,
        "shared_intermediate_size": int(moe_size * text["n_shared_experts"]),
        "routed_scaling_factor": text["routed_scaling_factor"],
        "norm_topk_prob": text.get("norm_topk_prob", True),
        "swiglu_limit": text["swiglu_limit"],
        "rms_norm_eps": text["rms_norm_eps"],
        "num_heads": text["num_attention_heads"],
        "q_lora_rank": text["q_lora_rank"],
        "kv_lora_rank": text["kv_lora_rank"],
        "qk_head_dim": text["qk_nope_head_dim"],
        "v_head_dim": text["v_head_dim"],
        "index_num_heads": text["index_n_heads"],
        "index_head_dim": text["index_head_dim"],
        "index_topk": text["index_topk"],
        "index_kpool": text["index_kpool"],
        "kda_num_heads": linear["num_heads"],
        "kda_head_dim": linear["head_dim"],
        "conv_kernel_size": linear["short_conv_kernel_size"],
        "gate_lower_bound": _lower_bound(linear),
        "num_streams": text["hc_mult"],
        "sinkhorn_iters": text["hc_sinkhorn_iters"],
        "hc_eps": text["hc_eps"],
        "num_mtp_layers": text.get("num_nextn_predict_layers", 0),
        "max_context": text["max_position_embeddings"],
        "eos_token_ids": tuple(eos) if isinstance(eos, list | tuple) else (eos,),
    }


def _is_fp8(config: dict[str, Any]) -> bool:
    return (config.get("quantization_config") or {}).get("quant_method") == "fp8"


def _lower_bound(linear: dict[str, Any]) -> float:
    bound = linear.get("gate_lower_bound")
    if bound is None and linear.get("safe_gate") is False:
        raise ConfigError("gate_lower_bound null with safe_gate false (the softplus gate) is not supported")
    return -5.0 if bound is None else float(bound)
