"""Data files given by path: they must exist and have the declared content."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

from workloads.spec import SpecError


def json_lines(path: str | Path, sha256: str | None, fields: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    """The objects of a JSON-lines file, each with `fields`. Raises SpecError with the line at fault."""
    path = Path(path)
    if not path.is_file():
        raise SpecError(f"there is no data file {path}; give its path as a parameter")
    content = path.read_bytes()
    if sha256 is not None and (got := hashlib.sha256(content).hexdigest()) != sha256:
        raise SpecError(f"{path.name} has SHA-256 {got}, not the declared {sha256}")
    for number, line in enumerate(content.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            item = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise SpecError(f"{path.name}, line {number}, is not JSON: {error}") from error
        if not isinstance(item, dict) or (missing := [f for f in fields if f not in item]):
            raise SpecError(
                f"{path.name}, line {number}, lacks {', '.join(missing) if isinstance(item, dict) else fields}"
            )
        yield item
