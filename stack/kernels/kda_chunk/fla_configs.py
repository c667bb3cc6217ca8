"""fla's kernels with their launch choices pinned: nothing autotunes after readiness. Not an implementation of its own.

The choices were measured on an H200 with Triton 3.6; a kernel whose name is not here keeps fla's own search.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

PINNED: dict[str, tuple[dict[str, int], int, int]] = {
    "kda_gate_chunk_cumsum_vector_kernel": ({"BS": 32}, 4, 3),
    "chunk_kda_fwd_kernel_intra_sub_chunk": ({}, 1, 3),
    "chunk_kda_fwd_kernel_inter_solve_fused": ({"BK": 32}, 1, 3),
    "recompute_w_u_fwd_kda_kernel": ({}, 4, 3),
    "chunk_gated_delta_rule_fwd_kernel_h_blockdim64": ({"BV": 32}, 4, 3),
    "chunk_gla_fwd_kernel_o": ({"BK": 64, "BV": 128}, 4, 3),
}
"""Kernel -> (tile sizes, warps, stages)."""


def pin(module: Any) -> None:
    """Replace the search space of every autotuned kernel of a module by its pinned choice."""
    import triton

    for value in vars(module).values():
        tuner = value
        while tuner is not None and not hasattr(tuner, "configs"):
            tuner = getattr(tuner, "fn", None)
        name = getattr(getattr(tuner, "base_fn", None), "__name__", "")
        if tuner is not None and name in PINNED:
            tiles, warps, stages = PINNED[name]
            tuner.configs = [triton.Config(dict(tiles), num_warps=warps, num_stages=stages)]


@cache
def chunk_kda_fwd_intra() -> Callable[..., Any]:
    """fla's preparation of chunks."""
    from fla.ops.kda import chunk_intra, wy_fast

    pin(chunk_intra)
    pin(wy_fast)
    function: Callable[..., Any] = chunk_intra.chunk_kda_fwd_intra
    return function


@cache
def chunk_kda_fwd() -> Callable[..., Any]:
    """fla's whole forward pass."""
    from fla.ops.common import chunk_delta_h
    from fla.ops.gla import chunk as gla_chunk
    from fla.ops.kda import chunk_fwd, gate

    chunk_kda_fwd_intra()
    for module in (gate, chunk_delta_h, gla_chunk):
        pin(module)
    function: Callable[..., Any] = chunk_fwd.chunk_kda_fwd
    return function
