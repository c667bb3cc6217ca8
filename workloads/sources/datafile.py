"""Data files given by path: they must exist and have the declared content."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import orjson
from pydantic import BaseModel, ValidationError

from workloads.spec import SpecError

LineT = TypeVar("LineT", bound=BaseModel)


def json_lines(path: str | Path, sha256: str | None, form: type[LineT]) -> Iterator[tuple[int, LineT]]:
    """The lines of a JSON-lines file, each with its number from 1, in a strict form. Raises SpecError with the line at
    fault."""
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
            yield number, form.model_validate(orjson.loads(line), strict=True)
        except orjson.JSONDecodeError as error:
            raise SpecError(f"{path.name}, line {number}, is not JSON: {error}") from error
        except ValidationError as error:
            faults = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'the line'}: {e['msg']}" for e in error.errors()[:4])
            raise SpecError(f"{path.name}, line {number}: {faults}") from error
