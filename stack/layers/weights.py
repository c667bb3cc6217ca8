"""Where layers get their weights from: a checkpoint, or a rule that draws them. Names are without prefix."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from stack.kernels.quantized import Fp8Weight


@dataclass(frozen=True, slots=True)
class Experts:
    """Stacked weights of a layer's routed experts: gate_up [E, 2I, C] (gate rows first) and down [E, C, I]."""

    gate_up: Tensor | Fp8Weight
    down: Tensor | Fp8Weight


class Weights(Protocol):
    """A source of weights in their final dtype and device. Unknown names and wrong shapes raise ConfigError."""

    dtype: torch.dtype
    """Dtype of activations and of unquantised weights."""

    def linear(self, name: str, rows: int, inputs: int, *, quantized: bool = False) -> Tensor | Fp8Weight:
        """The matrix `name` [rows, inputs]. `quantized`: the release has it in FP8; a checkpoint decides by itself."""

    def experts(self, prefix: str, num_experts: int, inner: int, width: int) -> Experts:
        """All of `{prefix}{e}.{gate,up,down}_proj.weight`, stacked."""

    def tensor(
        self, name: str, shape: Sequence[int], *, mean: float = 0.0, std: float = 0.0, dtype: torch.dtype | None = None
    ) -> Tensor:
        """Any other parameter, in `dtype` (default: the compute dtype); a rule draws N(mean, std)."""
