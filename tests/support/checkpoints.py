"""Variants of a written checkpoint: other settings over the same weights, or FP8 weights dequantised for a judge."""

import json
import shutil
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

from stack.kernels.quantized import GROUP

WITHOUT_CHOICES = {"num_experts_per_tok": 8, "index_topk": 4096}
"""Every expert and every visible token is used: no near-tie can turn rounding into another path."""


def variant(source: Path, target: Path, **text_settings: Any) -> Path:
    """`source` with fields of its text config changed; shapes must not depend on them."""
    shutil.copytree(source, target)
    config = json.loads((source / "config.json").read_text())
    config["text_config"] |= text_settings
    (target / "config.json").write_text(json.dumps(config))
    return target


def dequantized(source: Path, target: Path) -> Path:
    """`source` with FP8 matrices multiplied out to FP32, for an implementation that has no FP8."""
    shutil.copytree(source, target)
    tensors = load_file(source / "model.safetensors")
    scales = {name: tensors.pop(name) for name in list(tensors) if name.endswith("_scale_inv")}
    for name, scale in scales.items():
        weight_name = name.removesuffix("_scale_inv")
        tensors[weight_name] = _multiplied(tensors[weight_name], scale)
    save_file(tensors, target / "model.safetensors")
    config = json.loads((source / "config.json").read_text())
    del config["quantization_config"]
    (target / "config.json").write_text(json.dumps(config))
    return target


def _multiplied(codes_NK: Tensor, scale: Tensor) -> Tensor:
    blocks = scale.repeat_interleave(GROUP, 0).repeat_interleave(GROUP, 1)
    return codes_NK.float() * blocks[: codes_NK.shape[0], : codes_NK.shape[1]]
