"""Writes the `tiny` checkpoint: every mechanism of GLM-5.3-Flash, small counts, random weights that hide no bug.

`python -m stack.models.tiny FOLDER` writes the target (with its MTP layer) and `FOLDER/draft` (a DFlash2 draft) in the
Hugging Face layout, in BF16, FP32 or block-scaled FP8. Head widths, latent width and index widths are the release's, so
production kernels run on it unchanged. Every tensor is drawn: zeros and ones would hide mistakes in gates, biases and
pooling, and a decay bias around -2 lets states live long enough for a lost carry to show.
"""

import argparse
import json
import math
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from stack.core.errors import ConfigError
from stack.kernels.quantized import FP8_MAX, GROUP
from stack.models.tiny_tokenizer import VOCAB_SIZE, write_tokenizer

_LAYERS = ["linear_attention"] * 3 + ["deepseek_sparse_attention"] + ["linear_attention"] * 3
LAYER_TYPES = [*_LAYERS, "deepseek_sparse_attention", "linear_attention"]

TEXT_CONFIG: dict[str, Any] = {
    "model_type": "glm5_next_text",
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 256,
    "intermediate_size": 512,
    "moe_intermediate_size": 128,
    "num_hidden_layers": 9,
    "mlp_layer_types": ["dense", *["sparse"] * 8],
    "layer_types": LAYER_TYPES,
    "indexer_types": ["full"] * 9,
    "first_k_dense_replace": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "q_lora_rank": 128,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 256,
    "qk_rope_head_dim": 0,
    "v_head_dim": 256,
    "mla_use_nope": True,
    "index_n_heads": 32,
    "index_head_dim": 128,
    "index_topk": 64,
    "index_kpool": 4,
    "index_kpool_compress": True,
    "index_kpool_always_select_tail": True,
    "index_share_for_mtp_iteration": True,
    "linear_attn_config": {
        "num_heads": 4,
        "head_dim": 128,
        "short_conv_kernel_size": 4,
        "gate_lower_bound": -5.0,
        "kda_layers": [0, 1, 2, 4, 5, 6, 8],
        "full_attn_layers": [3, 7],
    },
    "mhc": True,
    "hc_mult": 4,
    "hc_eps": 1e-6,
    "hc_sinkhorn_iters": 20,
    "swiglu_limit": 10.0,
    "rms_norm_eps": 1e-5,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "num_nextn_predict_layers": 1,
    "max_position_embeddings": 4096,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "pad_token_id": 0,
    "eos_token_id": [1],
}

DRAFT_CONFIG: dict[str, Any] = {
    "architectures": ["DFlash2DraftModel"],
    "model_type": "qwen3",
    "hidden_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "intermediate_size": 512,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "attention_bias": False,
    "vocab_size": VOCAB_SIZE,
    "rope_theta": 10000,
    "is_causal": False,
    "layer_types": ["sliding_attention"] * 2,
    "sliding_window": 64,
    "max_position_embeddings": 4096,
    "num_target_layers": 9,
    "dflash_config": {
        "block_size": 8,
        "mask_token_id": VOCAB_SIZE - 1,
        "target_layer_ids": [1, 4, 7],
        "conv_kernel_size": 2,
        "conv_group_size": 16,
        "selector_rank": 32,
        "selector_top_k": 16,
    },
}

_FP8_LINEARS = ("mlp", "q_a_proj", "q_b_proj", "kv_a_proj_with_mqa")
_FP32_TENSORS = ("A_log", "dt_bias", "_base", "_scale", "e_score_correction_bias")


def write_tiny(folder: Path, *, seed: int = 0, dtype: str = "bfloat16", fp8: bool = False) -> None:
    """Write config, weights and tokenizer into `folder`, and a draft into `folder / "draft"`.

    `dtype` ("bfloat16" or "float32") is the unquantised weights'; `fp8` stores the linears that the release quantises
    as E4M3 with 128 x 128 block scales. The same seed gives the same weights before rounding.
    """
    if dtype not in ("bfloat16", "float32"):
        raise ConfigError(f"dtype must be bfloat16 or float32, not {dtype!r}")
    folder.mkdir(parents=True, exist_ok=True)
    store = torch.float32 if dtype == "float32" else torch.bfloat16
    tensors = {name: tensor.to(store) if not _is_fp32(name) else tensor for name, tensor in _target(seed).items()}
    if fp8:
        tensors = _quantized(tensors)
    _write(folder, _target_config(dtype, fp8), tensors)
    write_tokenizer(folder)
    draft = {name: tensor.to(store) for name, tensor in _draft(seed + 1).items()}
    (folder / "draft").mkdir(exist_ok=True)
    _write(folder / "draft", {**DRAFT_CONFIG, "dtype": dtype}, draft)


def _target_config(dtype: str, fp8: bool) -> dict[str, Any]:
    config = {
        "architectures": ["Glm5NextForConditionalGeneration"],
        "model_type": "glm5_next",
        "dtype": dtype,
        "text_config": {**TEXT_CONFIG, "dtype": dtype},
    }
    if fp8:
        config["quantization_config"] = {
            "quant_method": "fp8",
            "fmt": "e4m3",
            "activation_scheme": "dynamic",
            "weight_block_size": [GROUP, GROUP],
        }
    return config


def _write(folder: Path, config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, str(folder / "model.safetensors"))


def _is_fp32(name: str) -> bool:
    return name.endswith(_FP32_TENSORS)


def _target(seed: int) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    c = TEXT_CONFIG
    hidden, vocab = c["hidden_size"], c["vocab_size"]
    root = "model.language_model."
    tensors = {
        f"{root}embed_tokens.weight": _normal(draw, vocab, hidden),
        f"{root}norm.weight": _norm(draw, hidden),
        "lm_head.weight": _linear(draw, vocab, hidden),
    }
    for layer, kind in enumerate(c["layer_types"]):
        parts = _mixer(draw, kind) | _mlp(draw, c["mlp_layer_types"][layer]) | _norms(draw) | _streams(draw)
        tensors |= {f"{root}layers.{layer}.{name}": tensor for name, tensor in parts.items()}
    mtp = _mixer(draw, "deepseek_sparse_attention") | _mlp(draw, "sparse") | _norms(draw)
    mtp |= {name: _norm(draw, hidden) for name in ("enorm.weight", "hnorm.weight", "shared_head.norm.weight")}
    mtp["eh_proj.weight"] = _linear(draw, hidden, 2 * hidden)
    return tensors | {f"{root}layers.{c['num_hidden_layers']}.{name}": tensor for name, tensor in mtp.items()}


def _norms(draw: torch.Generator) -> dict[str, Tensor]:
    hidden = TEXT_CONFIG["hidden_size"]
    return {name: _norm(draw, hidden) for name in ("input_layernorm.weight", "post_attention_layernorm.weight")}


def _streams(draw: torch.Generator) -> dict[str, Tensor]:
    n = TEXT_CONFIG["hc_mult"]
    rows = (2 + n) * n
    tensors = {}
    for site in ("attn", "ffn"):
        tensors[f"hc_{site}_fn"] = _normal(draw, rows, n * TEXT_CONFIG["hidden_size"], std=0.02)
        tensors[f"hc_{site}_base"] = _normal(draw, rows, std=0.5)
        tensors[f"hc_{site}_scale"] = _uniform(draw, 3, low=0.5, high=1.5)
    return tensors


def _mixer(draw: torch.Generator, kind: str) -> dict[str, Tensor]:
    parts = _kda(draw) if kind == "linear_attention" else _dsa(draw)
    return {f"self_attn.{name}": tensor for name, tensor in parts.items()}


def _kda(draw: torch.Generator) -> dict[str, Tensor]:
    linear, hidden = TEXT_CONFIG["linear_attn_config"], TEXT_CONFIG["hidden_size"]
    heads, dim = linear["num_heads"], linear["head_dim"]
    width, taps = heads * dim, linear["short_conv_kernel_size"]
    tensors = {f"{part}_proj.weight": _linear(draw, width, hidden) for part in "qkv"}
    tensors |= {f"{part}_conv1d.weight": _normal(draw, width, 1, taps, std=0.5) for part in "qkv"}
    for gate in "fg":
        tensors[f"{gate}_a_proj.weight"] = _linear(draw, dim, hidden)
        tensors[f"{gate}_b_proj.weight"] = _linear(draw, width, dim)
    return tensors | {
        "b_proj.weight": _linear(draw, heads, hidden),
        "A_log": _uniform(draw, heads, low=-1.0, high=1.0),
        "dt_bias": _normal(draw, width) - 2.0,
        "o_norm.weight": _norm(draw, dim),
        "o_proj.weight": _linear(draw, hidden, width),
    }


def _dsa(draw: torch.Generator) -> dict[str, Tensor]:
    c = TEXT_CONFIG
    hidden, heads, rank, latent = c["hidden_size"], c["num_attention_heads"], c["q_lora_rank"], c["kv_lora_rank"]
    index = c["index_head_dim"]
    return {
        "q_a_proj.weight": _linear(draw, rank, hidden),
        "q_a_layernorm.weight": _norm(draw, rank),
        "q_b_proj.weight": _linear(draw, heads * c["qk_nope_head_dim"], rank),
        "kv_a_proj_with_mqa.weight": _linear(draw, latent, hidden),
        "kv_a_layernorm.weight": _norm(draw, latent),
        "kv_b_proj.weight": _linear(draw, heads * (c["qk_nope_head_dim"] + c["v_head_dim"]), latent),
        "o_proj.weight": _linear(draw, hidden, heads * c["v_head_dim"]),
        "indexer.wq_b.weight": _linear(draw, c["index_n_heads"] * index, rank),
        "indexer.wk.weight": _linear(draw, index, hidden),
        "indexer.weights_proj.weight": _linear(draw, c["index_n_heads"], hidden),
        "indexer.k_norm.weight": _norm(draw, index),
        "indexer.k_norm.bias": _normal(draw, index, std=0.1),
        "indexer.index_kpool_compress_gate": _linear(draw, index, hidden),
        "indexer.index_kpool_compress_ape": _normal(draw, c["index_kpool"], index, std=0.5),
    }


def _mlp(draw: torch.Generator, kind: str) -> dict[str, Tensor]:
    c = TEXT_CONFIG
    hidden = c["hidden_size"]
    if kind == "dense":
        return {f"mlp.{name}": tensor for name, tensor in _swiglu(draw, c["intermediate_size"]).items()}
    inner = c["moe_intermediate_size"]
    tensors = {
        "mlp.gate.weight": _linear(draw, c["n_routed_experts"], hidden),
        "mlp.gate.e_score_correction_bias": _normal(draw, c["n_routed_experts"], std=0.1),
    }
    shared = _swiglu(draw, inner * c["n_shared_experts"])
    tensors |= {f"mlp.shared_experts.{name}": tensor for name, tensor in shared.items()}
    for expert in range(c["n_routed_experts"]):
        tensors |= {f"mlp.experts.{expert}.{name}": tensor for name, tensor in _swiglu(draw, inner).items()}
    return tensors


def _swiglu(draw: torch.Generator, inner: int) -> dict[str, Tensor]:
    """Gate and up rows are 3.5 times the usual size, so that the clamp at 10 acts."""
    hidden = TEXT_CONFIG["hidden_size"]
    return {
        "gate_proj.weight": _linear(draw, inner, hidden, gain=3.5),
        "up_proj.weight": _linear(draw, inner, hidden, gain=3.5),
        "down_proj.weight": _linear(draw, hidden, inner, gain=0.1),
    }


def _draft(seed: int) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    c, options = DRAFT_CONFIG, DRAFT_CONFIG["dflash_config"]
    hidden, taps = c["hidden_size"], len(options["target_layer_ids"])
    tensors = {
        "fc.weight": _linear(draw, hidden, taps * TEXT_CONFIG["hidden_size"]),
        "hidden_norm.weight": _norm(draw, hidden),
        "norm.weight": _norm(draw, hidden),
        "candidate_selector.predecessor_codebook": _normal(draw, VOCAB_SIZE, options["selector_rank"], std=0.3),
        "candidate_selector.successor_codebook": _normal(draw, VOCAB_SIZE, options["selector_rank"], std=0.3),
        "candidate_selector.hidden_projection.weight": _linear(draw, options["selector_rank"], hidden),
    }
    for layer in range(c["num_hidden_layers"]):
        tensors |= {f"layers.{layer}.{name}": tensor for name, tensor in _draft_layer(draw).items()}
    return tensors


def _draft_layer(draw: torch.Generator) -> dict[str, Tensor]:
    c, options = DRAFT_CONFIG, DRAFT_CONFIG["dflash_config"]
    hidden, dim = c["hidden_size"], c["head_dim"]
    heads, kv_heads, inner = c["num_attention_heads"], c["num_key_value_heads"], c["intermediate_size"]
    tensors = _norms(draw) | {
        "self_attn.q_proj.weight": _linear(draw, heads * dim, hidden),
        "self_attn.k_proj.weight": _linear(draw, kv_heads * dim, hidden),
        "self_attn.v_proj.weight": _linear(draw, kv_heads * dim, hidden),
        "self_attn.o_proj.weight": _linear(draw, hidden, heads * dim),
        "self_attn.q_norm.weight": _norm(draw, dim),
        "self_attn.k_norm.weight": _norm(draw, dim),
        "mlp.gate_proj.weight": _linear(draw, inner, hidden),
        "mlp.up_proj.weight": _linear(draw, inner, hidden),
        "mlp.down_proj.weight": _linear(draw, hidden, inner),
    }
    groups = hidden // options["conv_group_size"]
    for place in ("attention_conv", "mlp_conv"):
        tensors[f"{place}.base_kernel"] = _normal(draw, 2, options["conv_kernel_size"], hidden, std=0.3)
        tensors[f"{place}.kernel_projection.weight"] = _linear(draw, 4 * groups, hidden, gain=0.3)
    return tensors


def _quantized(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    result: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if _is_fp8(name):
            result[name], result[f"{name}_scale_inv"] = quantize_weight(tensor.float())
        else:
            result[name] = tensor
    return result


def _is_fp8(name: str) -> bool:
    is_dsa_out = name.endswith("o_proj.weight") and _layer_of(name) in {3, 7, len(LAYER_TYPES)}
    is_linear = any(part in name for part in _FP8_LINEARS) and name.endswith(("proj.weight", "proj_with_mqa.weight"))
    return is_linear or is_dsa_out


def _layer_of(name: str) -> int:
    return int(name.split("layers.")[1].split(".")[0])


def quantize_weight(weight_NK: Tensor) -> tuple[Tensor, Tensor]:
    """E4M3 codes [N, K] and FP32 scales [ceil(N/128), ceil(K/128)], scale = max|block| / 448, of an FP32 weight."""
    n, k = weight_NK.shape
    rows, columns = math.ceil(n / GROUP), math.ceil(k / GROUP)
    padded = torch.zeros(rows * GROUP, columns * GROUP)
    padded[:n, :k] = weight_NK
    blocks = padded.view(rows, GROUP, columns, GROUP)
    scale = blocks.abs().amax(dim=(1, 3)).clamp(min=1e-10) / FP8_MAX
    codes = (blocks / scale[:, None, :, None]).clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn)
    return codes.view(rows * GROUP, columns * GROUP)[:n, :k].contiguous(), scale


def _normal(draw: torch.Generator, *shape: int, std: float = 1.0) -> Tensor:
    return torch.randn(*shape, generator=draw) * std


def _uniform(draw: torch.Generator, *shape: int, low: float, high: float) -> Tensor:
    return torch.rand(*shape, generator=draw) * (high - low) + low


def _norm(draw: torch.Generator, width: int) -> Tensor:
    return 1.0 + _normal(draw, width, std=0.1)


def _linear(draw: torch.Generator, rows: int, columns: int, gain: float = 1.0) -> Tensor:
    return _normal(draw, rows, columns, std=gain / math.sqrt(columns))


def main(arguments: list[str] | None = None) -> None:
    """Command line: write the checkpoint and say where."""
    parser = argparse.ArgumentParser(prog="python -m stack.models.tiny", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=0, help="seed of the weights (default 0)")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--fp8", action="store_true", help="store the quantised linears as block-scaled FP8")
    options = parser.parse_args(arguments)
    write_tiny(options.folder, seed=options.seed, dtype=options.dtype, fp8=options.fp8)
    print(f"wrote {options.folder} and {options.folder / 'draft'}")  # noqa: T201


if __name__ == "__main__":
    main()
