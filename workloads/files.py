"""Files that are either whole or absent, and JSON that every reader accepts.

A reader never meets half a file: content goes to a temporary name in the same folder, is flushed to the disk, and then
takes its final name. NaN and infinities are refused, because half of all JSON readers refuse them.
"""

import json
import math
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any


def write_json(path: Path, value: Any) -> None:
    """Write `value` as strict JSON, atomically. Raises ValueError with the place of a non-finite number."""
    if place := _non_finite(value, "$"):
        raise ValueError(f"{path.name}: {place} is not a finite number; give null and a reason instead")
    text = json.dumps(value, indent=1, sort_keys=True, allow_nan=False, ensure_ascii=False) + "\n"
    write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def read_json(path: Path) -> Any:
    """Read strict JSON. Raises ValueError for NaN, infinities and text that ends early."""

    def refuse(name: str) -> Any:
        raise ValueError(f"{path.name}: {name} is not JSON")

    return json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse)


def write_bytes(path: Path, content: bytes) -> None:
    """Write `content`, atomically."""
    write_atomically(path, lambda temporary: temporary.write_bytes(content))


def write_atomically(path: Path, write: Callable[[Path], Any]) -> None:
    """Let `write` fill a temporary file beside `path`, flush it to the disk, then give it its name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        write(temporary)
        _flush(temporary)
        temporary.chmod(0o644)
        temporary.replace(path)
        _flush(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _non_finite(value: Any, place: str) -> str | None:
    if isinstance(value, float) and not math.isfinite(value):
        return place
    children: list[tuple[str, Any]] = []
    if isinstance(value, dict):
        children = [(f"{place}.{key}", child) for key, child in value.items()]
    elif isinstance(value, (list, tuple)):
        children = [(f"{place}[{i}]", child) for i, child in enumerate(value)]
    return next((found for where, child in children if (found := _non_finite(child, where))), None)
