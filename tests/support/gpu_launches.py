"""Counts what a step would give a GPU, where there is none: GPU implementations get CPU tensors, and their own kernels
are counted instead of launched.

Results are whatever lay in memory, so only a step whose course depends on no value can be counted. What a library
launches beyond one kernel for a call of PyTorch is not seen, and DeepGEMM is stood in for by Triton.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from stack.kernels import cuda_source, tensor_map
from stack.kernels.binding import BoundOp
from stack.kernels.catalog import OPS
from stack.kernels.moe import cuda_grouped
from tests.support.launches import Launches

STAND_INS = {"linear_fp8": "triton_block", "index_select": "paged", "linear": "torch_matmul"}
"""What is bound for first choices that need a package or a device to be asked: as many launches in a decode step."""


def first_choice(op: str) -> str:
    """The implementation that a GPU takes, or a stand-in for it."""
    return STAND_INS.get(op) or OPS[op].impls[0]


@contextmanager
def gpu_launches(ops: Any, impls: dict[str, str]) -> Iterator[Counter[str]]:
    """Counts by name while it is open. `ops` is the model's `Ops`; `impls` names others than the first choices. A
    sampling op counts as one launch."""
    from triton.runtime.jit import JITFunction

    launches, own = Launches(), Counter[str]()
    call, bound = BoundOp.__call__, {name: getattr(ops, name) for name in ops.impls}

    def called(op: BoundOp, *args: Any, **kwargs: Any) -> Any:
        is_sample = op.name == "sample"
        own["sample"] += is_sample
        launches._depth += is_sample
        try:
            return call(op, *args, **kwargs)
        finally:
            launches._depth -= is_sample

    def counted(kernel: Any, grid: Any) -> Any:
        return lambda *args, **kwargs: own.update([kernel.fn.__name__])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JITFunction, "__getitem__", counted)
        patch.setattr(cuda_source.CudaKernel, "launch", lambda kernel, *args: own.update([kernel.name]))
        patch.setattr(tensor_map, "byte_matrix", lambda *matrix: None)
        patch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(multi_processor_count=132))
        patch.setattr(BoundOp, "__call__", called)
        for name in bound:
            impl = impls.get(name) or first_choice(name)
            object.__setattr__(ops, name, BoundOp(name, impl, OPS[name].module(impl)))
        try:
            with launches:
                yield own
        finally:
            own.update(launches.outside)
            for name, op in bound.items():
                object.__setattr__(ops, name, op)
            for kept in (cuda_grouped._map, cuda_grouped._multiprocessors):
                kept.cache_clear()
