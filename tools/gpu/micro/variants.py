"""Implementations under other launch choices: `NAME@module.CONSTANT=3,keyword=32`, `NAME@tiles=TABLE`.

A constant is one of a module in the op's folder; a word without a dot is a keyword of the call. Values are integers,
but `tiles` names a measured table of the expert products.
"""

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any

from stack.kernels.catalog import OPS
from stack.kernels.moe.tables import FOLDER, load_table

TILES = "tiles"


def implementation(variant: str) -> str:
    """The name before the choices."""
    return variant.partition("@")[0]


def is_measured(variant: str) -> bool:
    """Whether the table that it names is there; nothing else has to be."""
    return all((FOLDER / f"{value}.json").exists() for name, value in _choices(variant) if name == TILES)


@contextlib.contextmanager
def chosen(op: str, variant: str) -> Iterator[dict[str, Any]]:
    """Sets the constants while it is open; gives the keywords. Raises AttributeError for a strange constant and
    ConfigError for a table that is not there."""
    keywords: dict[str, Any] = {}
    before: list[tuple[Any, str, int]] = []
    for name, value in _choices(variant):
        folder, _, constant = name.rpartition(".")
        if name == TILES:
            keywords[name] = load_table(value)
            continue
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


def _choices(variant: str) -> Iterator[tuple[str, str]]:
    for choice in filter(None, variant.partition("@")[2].split(",")):
        name, _, value = choice.partition("=")
        yield name, value


def _forget(module: Any) -> None:
    """What a module has cached may depend on its constants."""
    for value in vars(module).values():
        if hasattr(value, "cache_clear"):
            value.cache_clear()
