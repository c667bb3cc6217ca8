"""The dispatch rule with the shared expert: for few rows in the routed experts' launches, for many a term of the sum.

Many rows keep DeepGEMM's products, the shared expert's among them; its output is a term of the weighted sum there, not
an addition of its own. Which rows are few is what `by_rows` has measured.
"""

from collections.abc import Callable

from torch import Tensor

from stack.kernels.moe import by_rows, deep_gemm_contiguous, triton_beside
from stack.kernels.moe.by_rows import MOST_TRITON_ROWS, missing
from stack.kernels.moe.experts import Experts, SharedExpert
from stack.kernels.moe.routing import combine
from stack.kernels.moe.tables import TileTable
from stack.kernels.quantized import QuantizedRows

__all__ = ["missing", "moe"]


def moe(
    x_TC: Tensor,
    ids_TK: Tensor,
    weights_TK: Tensor,
    experts: Experts,
    *,
    limit: float | None,
    swiglu_quant: Callable[..., QuantizedRows],
    shared: SharedExpert | None = None,
    rows: QuantizedRows | None = None,
    tiles: TileTable | None = None,
) -> Tensor:
    """See the op's contract. `tiles` are for the few. Without a shared expert it is `by_rows`."""
    if shared is None:
        return by_rows.moe(
            x_TC, ids_TK, weights_TK, experts, limit=limit, swiglu_quant=swiglu_quant, rows=rows, tiles=tiles
        )
    if x_TC.shape[0] <= MOST_TRITON_ROWS:
        return triton_beside.moe(
            x_TC, ids_TK, weights_TK, experts, limit=limit, swiglu_quant=swiglu_quant, shared=shared, rows=rows,
            tiles=tiles,
        )  # fmt: skip
    rows_MC, places = deep_gemm_contiguous.sorted_outputs(x_TC, ids_TK, experts, limit=limit, swiglu_quant=swiglu_quant)
    return combine(rows_MC, places, weights_TK, shared(x_TC, rows))
