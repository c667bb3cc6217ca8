"""The FP8 form of a written target: what the release quantises as E4M3 with 128 x 128 block scales.

Gate and up of an expert narrower than a block lie in one block of the stacked matrix, so they share their scales.
"""

import json
import math
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from stack.kernels.quantized import FP8_MAX, GROUP
from stack.training.export import write_folder
from stack.training.parameters import Tensors

_FP8_PARTS = ("gate_proj.weight", "up_proj.weight", "down_proj.weight")
_FP8_ATTENTION = ("q_a_proj.weight", "q_b_proj.weight", "kv_a_proj_with_mqa.weight")


def write_fp8(source: Path, target: Path) -> None:
    """An FP8 form of the written target in `source`; the draft is not copied."""
    config = json.loads((source / "config.json").read_text())
    config["quantization_config"] = {
        "quant_method": "fp8",
        "fmt": "e4m3",
        "activation_scheme": "dynamic",
        "weight_block_size": [GROUP, GROUP],
    }
    tensors = load_file(source / "model.safetensors")
    dsa = [i for i, kind in enumerate(config["text_config"]["layer_types"]) if kind != "linear_attention"]
    dsa.append(config["text_config"]["num_hidden_layers"])
    outs = tuple(f"layers.{layer}.self_attn.o_proj.weight" for layer in dsa)
    quantized: Tensors = {}
    for name, tensor in tensors.items():
        if (".mlp." in name and name.endswith(_FP8_PARTS)) or name.endswith((*_FP8_ATTENTION, *outs)):
            weight = tensor.float()
            quantized[name], quantized[f"{name}_scale_inv"] = quantize_blocks(weight, _partner(name, tensors))
        else:
            quantized[name] = tensor
    write_folder(target, config, quantized)


def quantize_blocks(weight_NK: Tensor, partner_NK: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """E4M3 codes and FP32 scales of 128 x 128 blocks; `partner_NK` is a matrix that has to get the same scales."""
    scale = _block_peaks(weight_NK)
    if partner_NK is not None:
        scale = torch.maximum(scale, _block_peaks(partner_NK))
    scale = scale.clamp(min=1e-10) / FP8_MAX
    wide = scale.repeat_interleave(GROUP, 0)[: weight_NK.shape[0]].repeat_interleave(GROUP, 1)[:, : weight_NK.shape[1]]
    return (weight_NK / wide).clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn), scale


def _block_peaks(weight_NK: Tensor) -> Tensor:
    n, k = weight_NK.shape
    rows, columns = math.ceil(n / GROUP), math.ceil(k / GROUP)
    padded = torch.zeros(rows * GROUP, columns * GROUP)
    padded[:n, :k] = weight_NK.abs()
    return padded.view(rows, GROUP, columns, GROUP).amax(dim=(1, 3))


def _partner(name: str, tensors: Tensors) -> Tensor | None:
    """Up for gate and gate for up, of experts narrower than a block."""
    if ".experts." not in name or tensors[name].shape[0] % GROUP == 0 or "down_proj" in name:
        return None
    other = name.replace("gate_proj", "up_proj") if "gate_proj" in name else name.replace("up_proj", "gate_proj")
    return tensors[other].float()
