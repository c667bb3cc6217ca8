"""How TileLang programs become kernels for Hopper. Knows no op.

A program that is compiled once stays; TileLang keeps the binaries in a cache of its own folder besides.
"""

from typing import Any

from stack.kernels.devices import hopper_only, package_missing

TARGET = {"kind": "cuda", "arch": "sm_90a"}

PASSES = {
    "tl.disable_tma_lower": True,
    "tl.disable_warp_specialized": True,
    "tl.disable_safe_memory_legalize": True,
}
"""Rows are gathered with asynchronous copies by the threads that compute on them; every index is bounded where it is
computed, so no guards are added, which would cut the copies into pieces."""


def missing(device: str) -> str | None:
    """Why a program cannot run on `device`: it needs Hopper and TileLang."""
    return hopper_only(device) or package_missing("tilelang")


def compiled(program: Any) -> Any:
    """The kernel of a program, to be called with its tensors and numbers. Raises where nvcc is not installed."""
    import tilelang

    return tilelang.compile(program, target=TARGET, pass_configs=PASSES)


def cuda_source(program: Any) -> str:
    """What the compiler would be given; needs neither a GPU nor nvcc."""
    import tilelang
    from tilelang import tvm

    target = tvm.target.Target(TARGET)
    with target, tvm.transform.PassContext(config=PASSES):
        lowered: str = tilelang.lower(program, target=target).kernel_source
    return lowered
