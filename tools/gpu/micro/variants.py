"""Implementations under other launch choices: `NAME@module.CONSTANT=3,keyword=32`.

A constant is one of a module in the op's folder; a word without a dot is a keyword of the call. Values are integers.
"""

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any

from stack.kernels.catalog import OPS


def implementation(variant: str) -> str:
    """The name before the choices."""
    return variant.partition("@")[0]


@contextlib.contextmanager
def chosen(op: str, variant: str) -> Iterator[dict[str, int]]:
    """Sets the constants while it is open; gives the keywords. Raises AttributeError for a strange constant."""
    keywords: dict[str, int] = {}
    before: list[tuple[Any, str, int]] = []
    for choice in filter(None, variant.partition("@")[2].split(",")):
        name, _, value = choice.partition("=")
        folder, _, constant = name.rpartition(".")
        if not folder:
            keywords[name] = int(value)
            continue
        module = importlib.import_module(f"{OPS[op].package}.{folder}")
        before.append((module, constant, getattr(module, constant)))
        setattr(module, constant, int(value))
        _forget(module)
    try:
        yield keywords
    finally:
        for module, constant, value in before:
            setattr(module, constant, value)
            _forget(module)


def _forget(module: Any) -> None:
    """What a module has cached may depend on its constants."""
    for value in vars(module).values():
        if hasattr(value, "cache_clear"):
            value.cache_clear()
