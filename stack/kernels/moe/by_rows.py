"""The dispatch rule between the two grouped products: Triton tiles for few rows, DeepGEMM's contiguous rows for many.

Few rows are bound by the experts' weights, where small tiles waste less; many are bound by arithmetic. Measured on one
H200 with 72 experts, top-2: 383 against 516 us at 56 rows, 454 / 578 at 128, 610 / 665 at 1,056, 672 / 767 at 2,112.
"""

from collections.abc import Callable

from torch import Tensor

from stack.kernels.moe import deep_gemm_contiguous, triton_grouped
from stack.kernels.moe.experts import Experts, SharedExpert
from stack.kernels.moe.tables import TileTable
from stack.kernels.quantized import QuantizedRows

MOST_TRITON_ROWS = 2112


def missing(device: str) -> str | None:
    """Needs what both need."""
    return deep_gemm_contiguous.missing(device) or triton_grouped.missing(device)


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
    """See the op's contract. `tiles` are for the few."""
    if x_TC.shape[0] > MOST_TRITON_ROWS:
        return deep_gemm_contiguous.moe(
            x_TC, ids_TK, weights_TK, experts, limit=limit, swiglu_quant=swiglu_quant, shared=shared, rows=rows
        )
    return triton_grouped.moe(
        x_TC, ids_TK, weights_TK, experts, limit=limit, swiglu_quant=swiglu_quant, shared=shared, rows=rows, tiles=tiles
    )
