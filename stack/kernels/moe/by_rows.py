"""The dispatch rule between the grouped products: streamed weights for few rows, DeepGEMM's contiguous rows for many.

Few rows are bound by the experts' weights, which `cuda_grouped` reads without a pause; `tiles` ask for Triton's tiles
instead, and weights that the streaming kernel does not take get those too. Many rows are bound by arithmetic. Measured
on one H200 with 72 experts, top-2 (us, streamed / Triton / DeepGEMM): 371 / 383 / 485 at 56 rows, 439 / 457 / 545 at
128, 493 / 583 / 638 at 1,056, 567 / 642 / 738 at 2,112.
A shared expert goes into the routed experts' launches for few rows; for many it is a term of the weighted sum.
"""

from collections.abc import Callable

from torch import Tensor

from stack.kernels.moe import cuda_grouped, deep_gemm_contiguous, triton_beside, triton_grouped
from stack.kernels.moe.experts import Experts, SharedExpert
from stack.kernels.moe.routing import combine
from stack.kernels.moe.tables import TileTable
from stack.kernels.quantized import QuantizedRows

MOST_FEW_ROWS = 2112


def missing(device: str) -> str | None:
    """Needs what all of them need."""
    return deep_gemm_contiguous.missing(device) or triton_grouped.missing(device) or cuda_grouped.missing(device)


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
    if x_TC.shape[0] > MOST_FEW_ROWS:
        rows_MC, places = deep_gemm_contiguous.sorted_outputs(
            x_TC, ids_TK, experts, limit=limit, swiglu_quant=swiglu_quant
        )
        return combine(rows_MC, places, weights_TK, None if shared is None else shared(x_TC, rows))
    if tiles is None and cuda_grouped.fits(experts, shared):
        return cuda_grouped.moe(
            x_TC, ids_TK, weights_TK, experts, limit=limit, swiglu_quant=swiglu_quant, shared=shared, rows=rows
        )
    by_triton = triton_grouped.moe if shared is None else triton_beside.moe
    return by_triton(
        x_TC, ids_TK, weights_TK, experts, limit=limit, swiglu_quant=swiglu_quant, shared=shared, rows=rows, tiles=tiles
    )
