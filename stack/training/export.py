"""Writes trained tensors in the Hugging Face layout: what the engine and transformers load. Experts are written apart.

FP32 stays FP32 where the release keeps it so; all other tensors are rounded to BF16.
"""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from stack.training.parameters import Tensors

_ROOT = "model.language_model."
_FP32 = ("A_log", "dt_bias", "_base", "_scale", "e_score_correction_bias")


def write_target(folder: Path, tensors: Tensors, config: dict[str, Any], *, dtype: str = "bfloat16") -> None:
    """config.json and model.safetensors of the target with its MTP layer; `dtype` is bfloat16 or float32."""
    body = {
        "architectures": ["Glm5NextForConditionalGeneration"],
        "model_type": "glm5_next",
        "dtype": dtype,
        "text_config": {**config, "dtype": dtype},
    }
    named = {(name if name == "lm_head.weight" else _ROOT + name): t for name, t in _apart(tensors).items()}
    write_folder(folder, body, {name: _rounded(name, tensor, dtype) for name, tensor in named.items()})


def write_draft(folder: Path, tensors: Tensors, config: dict[str, Any], *, dtype: str = "bfloat16") -> None:
    """config.json and model.safetensors of the draft."""
    write_folder(
        folder, {**config, "dtype": dtype}, {name: t.detach().to(getattr(torch, dtype)) for name, t in tensors.items()}
    )


def read_target(folder: Path) -> Tensors:
    """A written target as FP32 tensors by relative names, experts stacked."""
    loaded = {name.removeprefix(_ROOT): t.float() for name, t in load_file(folder / "model.safetensors").items()}
    stacks: dict[str, dict[int, dict[str, Tensor]]] = {}
    for name in [name for name in loaded if ".experts." in name]:
        prefix, rest = name.split(".experts.")
        expert, part = rest.split(".", 1)
        stacks.setdefault(prefix, {}).setdefault(int(expert), {})[part.split("_")[0]] = loaded.pop(name)
    for prefix, experts in stacks.items():
        parts = [experts[expert] for expert in sorted(experts)]
        loaded[f"{prefix}.experts.gate_up"] = torch.stack([torch.cat((part["gate"], part["up"])) for part in parts])
        loaded[f"{prefix}.experts.down"] = torch.stack([part["down"] for part in parts])
    return loaded


def _apart(tensors: Tensors) -> Tensors:
    apart: Tensors = {}
    for name, tensor in tensors.items():
        if name.endswith("experts.gate_up"):
            for expert, pair in enumerate(tensor.detach()):
                stem = name.removesuffix("gate_up") + str(expert)
                apart[f"{stem}.gate_proj.weight"], apart[f"{stem}.up_proj.weight"] = pair.chunk(2)
        elif name.endswith("experts.down"):
            stem = name.removesuffix("down")
            apart |= {f"{stem}{expert}.down_proj.weight": down for expert, down in enumerate(tensor.detach())}
        else:
            apart[name] = tensor.detach()
    return apart


def _rounded(name: str, tensor: Tensor, dtype: str) -> Tensor:
    return tensor.float() if name.endswith(_FP32) else tensor.to(getattr(torch, dtype))


def write_folder(folder: Path, config: dict[str, Any], tensors: Tensors) -> None:
    """config.json and model.safetensors."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    save_file({name: t.contiguous().cpu().clone() for name, t in tensors.items()}, str(folder / "model.safetensors"))
