"""Counts what a decode step asks of a device outside of the ops' own kernels."""

from collections import Counter

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from stack.kernels.binding import BoundOp

_ALLOCATIONS = {"empty", "empty_like", "empty_strided", "new_empty"}


class Launches(TorchDispatchMode):
    """Counts calls of PyTorch that move bytes, by name, leaving out what happens inside a bound op; `ops` counts those.

    Enter it on the thread that runs the step, with `monkeypatch` already given to `watch_ops`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.outside: Counter[str] = Counter()
        self.ops: Counter[str] = Counter()
        self._depth = 0
        self._is_on = False

    def __enter__(self):
        self._is_on = True
        return super().__enter__()

    def __exit__(self, *error):
        self._is_on = False
        return super().__exit__(*error)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        name = func._schema.name.removeprefix("aten::")
        if not self._depth and name not in _ALLOCATIONS and (func._schema.is_mutable or not _is_view(result, args)):
            self.outside[name] += 1
        return result

    def watch_ops(self, monkeypatch) -> None:
        """From now on calls of bound ops are counted as one each."""
        call, function = BoundOp.__call__, BoundOp.function

        def counted(name, run):
            def inner(*args, **kwargs):
                self.ops[name] += self._is_on and self._depth == 0
                self._depth += 1
                try:
                    return run(*args, **kwargs)
                finally:
                    self._depth -= 1

            return inner

        monkeypatch.setattr(BoundOp, "__call__", lambda op, *a, **k: counted(op.name, lambda: call(op, *a, **k))())
        monkeypatch.setattr(BoundOp, "function", lambda op, name: counted(f"{op.name}.{name}", function(op, name)))


def _is_view(result, args) -> bool:
    """Whether a call only described its argument's memory anew."""
    given = {arg.untyped_storage().data_ptr() for arg in args if isinstance(arg, torch.Tensor)}
    first = result[0] if isinstance(result, list | tuple) else result
    return isinstance(first, torch.Tensor) and first.untyped_storage().data_ptr() in given
