"""A boundary, then the quantisation of its result by another launch. Not an implementation of its own."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stack.kernels.quantized import QuantizedRows


def then_quantized(boundary: Callable[..., Any]) -> Callable[..., Any]:
    """`mhc_boundary_quant` of the implementation whose `mhc_boundary` this is."""

    def mhc_boundary_quant(*args: Any, quantize_rows: "Callable[..., QuantizedRows]", **kwargs: Any) -> tuple[Any, ...]:
        """See the op's contract."""
        X_TNC, x_TC, post_TN, comb_TNN = boundary(*args, **kwargs)
        return X_TNC, x_TC, post_TN, comb_TNN, quantize_rows(x_TC)

    return mhc_boundary_quant
