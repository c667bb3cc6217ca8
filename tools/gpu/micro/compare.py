"""Runs an implementation and the reference on the same inputs and says how far apart they are.

Uninitialised results are NaN (or a wild integer) before the implementation writes them, so what it leaves unwritten
shows.
"""

import contextlib
import copy
import dataclasses
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from tools.gpu.micro.inputs import Call

WILD = 0x5A5A5A5A


def move(value: Any, device: str) -> Any:
    """A deep copy on `device` that keeps strides and which tensors share storage."""
    return _move(value, device, {})


def _move(value: Any, device: str, storages: dict[int, Tensor]) -> Any:
    if isinstance(value, Tensor):
        storage = value.untyped_storage()
        key = storage.data_ptr()
        if key not in storages:
            whole = torch.empty(0, dtype=torch.uint8, device=value.device).set_(storage)
            storages[key] = whole.clone().to(device)
        flat = storages[key].view(value.dtype) if value.dtype != torch.uint8 else storages[key]
        return flat.as_strided(value.shape, value.stride(), value.storage_offset())
    if isinstance(value, list | tuple):
        return type(value)(_move(item, device, storages) for item in value)
    if isinstance(value, dict):
        return {name: _move(item, device, storages) for name, item in value.items()}
    if isinstance(value, SimpleNamespace):
        return SimpleNamespace(**_move(vars(value), device, storages))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.replace(
            value, **{f.name: _move(getattr(value, f.name), device, storages) for f in dataclasses.fields(value)}
        )
    return value


def tensors(value: Any) -> list[Tensor]:
    """Every tensor of a result, in order."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, list | tuple):
        return [tensor for item in value for tensor in tensors(item)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [tensor for f in dataclasses.fields(value) for tensor in tensors(getattr(value, f.name))]
    return []


@contextlib.contextmanager
def poisoned() -> Iterator[None]:
    """`torch.empty` and its like give NaN or a wild integer."""
    real, real_like = torch.empty, torch.empty_like

    def poison(tensor: Tensor) -> Tensor:
        if tensor.is_cuda:
            if tensor.dtype == torch.float8_e4m3fn:
                tensor.view(torch.uint8).fill_(0x7F)
            elif tensor.dtype.is_floating_point:
                tensor.fill_(float("nan"))
            elif tensor.dtype in (torch.int32, torch.int64):
                tensor.fill_(WILD)
        return tensor

    with (
        mock.patch.object(torch, "empty", lambda *a, **k: poison(real(*a, **k))),
        mock.patch.object(torch, "empty_like", lambda *a, **k: poison(real_like(*a, **k))),
    ):
        yield


def distance(got: Tensor, want: Tensor) -> float:
    """|got - want| / |want|; for integers the share that differs; infinity for a NaN or another shape."""
    if got.shape != want.shape:
        return float("inf")
    got, want = got.detach().cpu(), want.detach().cpu()
    if not want.dtype.is_floating_point:
        return float((got != want).double().mean()) if want.numel() else 0.0
    got, want = got.double(), want.double()
    if not bool(torch.isfinite(got).all()):
        return float("inf")
    scale = float(want.norm())
    return float((got - want).norm()) / scale if scale else float(got.norm())


def run(function: Any, call: Call, device: str) -> list[Tensor]:
    """Results, then the arguments that the op writes."""
    args, kwargs = move((list(call.args), dict(call.kwargs)), device)
    kwargs = copy.copy(kwargs)
    with poisoned():
        result = function(*args, **kwargs)
    return tensors(result) + call.outputs(args) + [kwargs[name] for name in call.written]
