"""AdamW over named tensors, its schedule, and files to go on from. Weights of one dimension do not decay.

A state is three safetensors files of about the size of the weights, and a JSON file that is written last.
"""

import json
import math
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from stack.training.parameters import Tensors

_PARTS = ("weights", "first", "second")
_STATE = "state.json"


class Optimizer:
    """Trains `tensors` in place; names that end in one of `frozen` are left alone."""

    def __init__(self, tensors: Tensors, *, lr: float, weight_decay: float, frozen: tuple[str, ...] = ()) -> None:
        self.tensors = tensors
        self._lr = lr
        self._trained = {name: t.requires_grad_(True) for name, t in tensors.items() if not name.endswith(frozen)}
        plain = [t for t in self._trained.values() if t.dim() < 2]
        matrices = [t for t in self._trained.values() if t.dim() >= 2]
        groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": plain, "weight_decay": 0.0}]
        fused = next(iter(tensors.values())).is_cuda
        self._adam = torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95), eps=1e-8, fused=fused)

    def step(self, share: float) -> float:
        """Clip, move by `share` of the learning rate, forget the gradients; returns their norm before clipping."""
        norm = torch.nn.utils.clip_grad_norm_(list(self._trained.values()), 1.0)
        for group in self._adam.param_groups:
            group["lr"] = self._lr * share
        self._adam.step()
        self.forget()
        return float(norm)

    def forget(self) -> None:
        """Drop the gradients."""
        self._adam.zero_grad(set_to_none=True)

    def save(self, folder: Path, facts: dict[str, Any]) -> None:
        """Write weights, both moments and `facts`."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / _STATE).unlink(missing_ok=True)
        moments = [{n: self._adam.state[t][key] for n, t in self._trained.items()} for key in ("exp_avg", "exp_avg_sq")]
        for part, named in zip(_PARTS, (self.tensors, *moments), strict=True):
            save_file(
                {n: t.detach().cpu().contiguous().clone() for n, t in named.items()}, folder / f"{part}.safetensors"
            )
        (folder / _STATE).write_text(json.dumps(facts) + "\n")

    def restore(self, folder: Path) -> dict[str, Any] | None:
        """Go on from a saved state; its facts, or None where there is none."""
        facts = saved_facts(folder)
        if facts is None:
            return None
        weights, first, second = (load_file(folder / f"{part}.safetensors") for part in _PARTS)
        with torch.no_grad():
            for name, tensor in self.tensors.items():
                tensor.copy_(weights[name])
        for name, tensor in self._trained.items():
            moments = {"exp_avg": first[name].to(tensor.device), "exp_avg_sq": second[name].to(tensor.device)}
            on = tensor.device if tensor.is_cuda else torch.device("cpu")
            self._adam.state[tensor] = {"step": torch.tensor(float(facts["step"]), device=on), **moments}
        return facts


def saved_facts(folder: Path) -> dict[str, Any] | None:
    """The facts of a saved state, or None where there is none."""
    file = folder / _STATE
    facts: dict[str, Any] | None = json.loads(file.read_text()) if file.is_file() else None
    return facts


def saved_weights(folder: Path, device: torch.device) -> Tensors:
    """The weights of a saved state, without its moments."""
    return {name: tensor.to(device) for name, tensor in load_file(folder / f"{_PARTS[0]}.safetensors").items()}


def schedule(step: int, share: float, warmup: int) -> float:
    """Part of the learning rate: up in a line over `warmup` steps, then down along a cosine of the stage's share."""
    rise = min((step + 1) / warmup, 1.0)
    return rise * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * share)))


def balance(tensors: Tensors, loads: dict[str, Tensor], speed: float) -> float:
    """Move each router's bias towards even loads; returns the largest share of rows that one expert had."""
    worst = 0.0
    with torch.no_grad():
        for prefix, load in loads.items():
            tensors[f"{prefix}gate.e_score_correction_bias"] += speed * torch.sign(load.mean() - load)
        if loads:
            shares = torch.stack([load / load.sum() for load in loads.values()])
            worst = float(shares.max())
    return worst


def trainable(tensors: Tensors, device: torch.device) -> Tensors:
    """The same tensors as leaves on the device."""
    return {name: t.detach().to(device).clone() for name, t in tensors.items()}
