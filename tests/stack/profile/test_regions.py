"""Every op of a step is timed once, an op inside another is charged without it, and nothing stays wrapped."""

import time
from types import ModuleType

import pytest
import torch

from stack.kernels.binding import BoundOp
from stack.profile.regions import Regions


def bound(name: str, seconds: float, inner: BoundOp | None = None) -> BoundOp:
    module = ModuleType(name)

    def work() -> str:
        time.sleep(seconds)
        return inner() if inner else name

    setattr(module, name, work)
    return BoundOp(name, "scripted", module)


def test_an_op_that_calls_another_is_charged_without_it() -> None:
    call = BoundOp.__call__
    regions = Regions(torch.device("cpu"))
    inner = bound("inner", 0.03)
    outer = bound("outer", 0.01, inner)
    with regions.recording():
        regions.kind = "prefill"
        assert outer() == "inner"
        regions.kind = "decode"
        assert inner.function("inner")() == "inner"
    found = {(r.kind, r.op): r for r in regions.regions()}
    assert set(found) == {("prefill", "outer"), ("prefill", "inner"), ("decode", "inner")}
    assert found["prefill", "outer"].seconds < found["prefill", "inner"].seconds
    assert found["prefill", "outer"].seconds >= 0.01 and found["decode", "inner"].seconds >= 0.03
    assert BoundOp.__call__ is call, "nothing stays wrapped"


def test_an_op_that_fails_is_timed_and_raises_what_it_raised() -> None:
    regions = Regions(torch.device("cpu"))
    broken = BoundOp("absent", "scripted", ModuleType("absent"))
    with regions.recording(), pytest.raises(AttributeError):
        broken()
    assert [r.op for r in regions.regions()] == ["absent"]
