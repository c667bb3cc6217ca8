"""A norm, then the quantisation of its result by another launch. Not an implementation of its own."""

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from stack.kernels.quantized import QuantizedRows


def then_quantized(rms_norm: "Callable[..., Tensor]") -> "Callable[..., tuple[Tensor, QuantizedRows]]":
    """`rms_norm_quant` of the implementation whose `rms_norm` this is."""

    def rms_norm_quant(
        x_TC: "Tensor", weight_C: "Tensor", *, eps: float, quantize_rows: "Callable[..., QuantizedRows]"
    ) -> "tuple[Tensor, QuantizedRows]":
        """See the op's contract."""
        y_TC = rms_norm(x_TC, weight_C, eps=eps)
        return y_TC, quantize_rows(y_TC)

    return rms_norm_quant
