"""A call captured in a CUDA graph does, replayed on fresh inputs, what the same call does eagerly.

The graph keeps its tensors; before each replay they are filled with new values and its results with NaN (or a wild
integer), and it is replayed twice, so that a counter or a ring that one replay leaves behind shows in the next.
Parameters (what hangs on a `SimpleNamespace`, and what a call names) stay, as a model's do. Knows no op.
"""

import dataclasses
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from stack.kernels.catalog import OPS
from tools.gpu.micro.__main__ import bound, function
from tools.gpu.micro.checks import Check
from tools.gpu.micro.compare import WILD, distance, move, run, tensors
from tools.gpu.micro.inputs import Call
from tools.gpu.micro.timing import capture

REPLAYS = 2


def replay_rows(check: Check) -> list[dict[str, Any]]:
    """One row for each implementation of a case, as `check_rows` has them. `detail` says of one whose eager calls
    differ among themselves that its replay was held against the check's tolerance; all others are to be equal in every
    bit."""
    drawn = [_drawn(check, seed) for seed in range(REPLAYS + 1)]
    rows = []
    for impl in check.impls:
        row = {"op": check.op, "impl": impl, "case": check.label, "verdict": "ok", "detail": ""}
        rows.append(row)
        if reason := OPS[check.op].missing(impl, "cuda"):
            row |= {"verdict": "missing", "detail": reason[:160]}
            continue
        try:
            row |= _replayed(check, impl, drawn)
        except Exception as error:
            row |= {"verdict": "FAILED", "detail": f"{type(error).__name__}: {str(error)[:300]}"}
    return rows


def _drawn(check: Check, seed: int) -> Call:
    torch.manual_seed(seed)
    return check.build()


def _replayed(check: Check, impl: str, drawn: list[Call]) -> dict[str, str]:
    run_once = function(check.op, impl, drawn[0].function)
    first, *fresh = (bound(call, impl) for call in drawn)
    said = {"detail": ""}
    with torch.inference_mode():
        args, kwargs = move((list(first.args), dict(first.kwargs)), "cuda")
        results: list[Any] = []
        graph = capture(lambda: results.append(run_once(*args, **kwargs)))
        for call in fresh:
            call = Call(*with_parameters((call.args, call.kwargs), (args, kwargs)), call.outputs, written=call.written)
            for i in first.parameters:
                call.args[i] = args[i]
            overwrite((args, kwargs), move((list(call.args), dict(call.kwargs)), "cuda"), poison=tensors(results[-1]))
            graph.replay()
            torch.cuda.synchronize()
            got = tensors(results[-1]) + first.outputs(args) + [kwargs[name] for name in first.written]
            want = run(run_once, call, "cuda")
            if equal_bits(got, want):
                continue
            if equal_bits(run(run_once, call, "cuda"), want):
                return {"verdict": "WRONG", "detail": f"a replay differs: {_distances(got, want)}"}
            if max(map(distance, got, want)) > check.tolerance:
                return {"verdict": "WRONG", "detail": f"a replay is too far off: {_distances(got, want)}"}
            said = {"detail": f"eager calls differ, too; {_distances(got, want)} of {check.tolerance:g}"}
    return said


def _distances(got: list[Tensor], want: list[Tensor]) -> str:
    return " ".join(f"{distance(a, b):.1e}" for a, b in zip(got, want, strict=True))


def with_parameters(call: Any, held: Any) -> Any:
    """`call` with the parameters of `held`, which has the same structure."""
    if isinstance(call, SimpleNamespace):
        return held
    if isinstance(call, list | tuple):
        return type(call)(with_parameters(a, b) for a, b in zip(call, held, strict=True))
    if isinstance(call, dict):
        return {name: with_parameters(value, held[name]) for name, value in call.items()}
    if dataclasses.is_dataclass(call) and not isinstance(call, type):
        names = [field.name for field in dataclasses.fields(call)]
        return dataclasses.replace(call, **{n: with_parameters(getattr(call, n), getattr(held, n)) for n in names})
    return call


def overwrite(held: Any, fresh: Any, *, poison: list[Tensor]) -> None:
    """Poisons what a replay must write, then gives every tensor of `held` the values of its counterpart, gaps between
    strided rows included."""
    for tensor in poison:
        if tensor.dtype == torch.float8_e4m3fn:
            tensor.view(torch.uint8).fill_(0x7F)
        else:
            tensor.fill_(float("nan") if tensor.dtype.is_floating_point else WILD)
    done: set[int] = set()
    for old, new in pairs(held, fresh):
        if old.untyped_storage().data_ptr() not in done:
            done.add(old.untyped_storage().data_ptr())
            _whole(old).copy_(_whole(new))


def pairs(held: Any, fresh: Any) -> Iterator[tuple[Tensor, Tensor]]:
    """The tensors of two calls of one structure, parameters left out."""
    if isinstance(held, Tensor):
        yield held, fresh
    elif isinstance(held, list | tuple):
        for old, new in zip(held, fresh, strict=True):
            yield from pairs(old, new)
    elif isinstance(held, dict):
        for name, old in held.items():
            yield from pairs(old, fresh[name])
    elif dataclasses.is_dataclass(held) and not isinstance(held, type):
        for field in dataclasses.fields(held):
            yield from pairs(getattr(held, field.name), getattr(fresh, field.name))
    elif isinstance(held, int | float):
        assert held == fresh, "a graph has its numbers built in, so both calls must have the same"


def _whole(tensor: Tensor) -> Tensor:
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())


def equal_bits(got: list[Tensor], want: list[Tensor]) -> bool:
    """Whether all tensors are the same in shape and bits, so that NaNs compare."""
    return len(got) == len(want) and all(
        a.shape == b.shape and _bits_equal(a, b) for a, b in zip(got, want, strict=True)
    )


def _bits_equal(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and torch.equal(
        a.contiguous().flatten().view(torch.uint8), b.contiguous().flatten().view(torch.uint8)
    )
