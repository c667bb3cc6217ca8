"""What an expert layer gives its op: the routed experts' weights, and the shared expert, ready to run by itself."""

from typing import Protocol

from torch import Tensor

from stack.kernels.quantized import Fp8Weight, QuantizedRows


class Experts(Protocol):
    """Stacked weights of a layer: [E, 2I, C] and [E, C, I], as tensors or as Fp8Weights."""

    @property
    def gate_up(self) -> Tensor | Fp8Weight:
        """Gate rows first."""

    @property
    def down(self) -> Tensor | Fp8Weight:
        """The way back."""


class SharedExpert(Protocol):
    """The expert that every row goes through."""

    @property
    def weights(self) -> Experts:
        """gate_up [2J, C] and down [C, J]. Raises ValueError where they are not single matrices."""

    def __call__(self, x_TC: Tensor, rows: QuantizedRows | None = None) -> Tensor:
        """Its outputs [T, C] by ops of its own; `rows` are x quantised, where somebody has done that already."""


def with_shared(
    routed_TC: Tensor, x_TC: Tensor, shared: SharedExpert | None, rows: QuantizedRows | None = None
) -> Tensor:
    """The sum of the op's contract, by launches of its own."""
    return routed_TC if shared is None else routed_TC + shared(x_TC, rows)
