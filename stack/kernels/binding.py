"""How an op finds its implementation: a string in the configuration, bound once when the model is built.

An op is one folder under `stack/kernels`: its `__init__.py` holds the contract and the `OP`, `reference.py` the formula
in plain PyTorch (the judge), and one module for each implementation exports a function with the op's name. A named
implementation runs or raises with the reason; only `auto` may fall through.

An implementation module may define `def missing(device: str) -> str | None` that says why it cannot run on a device
("cpu", "cuda"): a package that is not installed, an architecture that it was not written for. One that serves some
shapes or types alone raises for the others, and may say why beforehand: `def unserved(*args, **kwargs) -> str | None`.
"""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from stack.core.errors import ConfigError, MissingImplementationError


@dataclass(frozen=True, slots=True)
class Op:
    """One op and the implementations it offers, in order of preference; `reference` is always last."""

    package: str
    impls: tuple[str, ...]

    @property
    def name(self) -> str:
        """The folder's name, which is also the function's."""
        return self.package.rsplit(".", 1)[-1]

    @property
    def all_impls(self) -> tuple[str, ...]:
        """Every name that a configuration may hold, besides `auto`."""
        return (*self.impls, "reference")

    def module(self, impl: str) -> ModuleType:
        """The implementation's module. Raises ConfigError for a name that does not exist."""
        if impl not in self.all_impls:
            raise ConfigError(f"kernels.{self.name} must be auto, {', '.join(self.all_impls)}, not {impl!r}")
        return importlib.import_module(f"{self.package}.{impl}")

    def missing(self, impl: str, device: str) -> str | None:
        """Why `impl` cannot run on `device` ("cpu" or "cuda"), or None when it can."""
        try:
            module = self.module(impl)
        except ImportError as error:
            return f"{impl} of {self.name} needs a package that is not installed: {error}"
        check: Callable[[str], str | None] | None = getattr(module, "missing", None)
        return check(device) if check else None

    def bind(self, impl: str, device: str, **options: Any) -> "BoundOp":
        """The callable for `impl` ("auto" takes the first that runs). Raises MissingImplementationError.

        `options` are keyword arguments of every call that only some implementations take.
        """
        for name in self.all_impls if impl == "auto" else (impl,):
            reason = self.missing(name, device)
            if reason is None:
                return BoundOp(self.name, name, self.module(name), options)
            if impl != "auto":
                raise MissingImplementationError(f"kernels.{self.name}: {name} cannot run on {device}: {reason}")
        raise MissingImplementationError(f"no implementation of {self.name} runs on {device}")


@dataclass(frozen=True, slots=True)
class BoundOp:
    """An op's chosen implementation; `impl` goes into every record."""

    name: str
    impl: str
    module: ModuleType
    options: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the function that has the op's name."""
        return getattr(self.module, self.name)(*args, **kwargs, **self.options)

    def function(self, name: str) -> Callable[..., Any]:
        """Another function of the implementation, where the op's contract names several."""
        found: Callable[..., Any] = getattr(self.module, name)
        return found
