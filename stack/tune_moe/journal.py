"""Timings that an interrupted search need not repeat: one JSON line each, with what they are of.

The first line says which routes, shape and versions the timings belong to; a journal of anything else is refused, not
mixed in.
"""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from stack.core.errors import ConfigError
from stack.kernels.moe.tables import Tile
from stack.tune_moe.search import TileError, Timer


class Journal:
    """Appends to `path`. `subject` is what all timings in it must share."""

    def __init__(self, path: Path, subject: dict[str, Any]) -> None:
        self._times: dict[str, list[float | None]] = {}
        self.num_known = 0
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = path.read_text().splitlines() if path.exists() else []
        if lines:
            self._read(path, lines, subject)
        self._file = path.open("a")
        if not lines:
            self._write(subject)

    def timer(self, num_rows: int, timer: Timer) -> Timer:
        """`timer` for one number of rows, asked only for what is not written down yet."""

        def timed(tile: Tile, part: str, route: int) -> float:
            key = json.dumps([num_rows, asdict(tile), part, route], sort_keys=True)
            if known := self._times.get(key):
                earlier = known.pop(0)
                if earlier is None:
                    raise TileError("did not run before either")
                return earlier
            try:
                measured = timer(tile, part, route)
            except TileError:
                self._write({"of": key, "us": None})
                raise
            self._write({"of": key, "us": measured})
            return measured

        return timed

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _read(self, path: Path, lines: list[str], subject: dict[str, Any]) -> None:
        try:
            kept, *entries = (json.loads(line) for line in lines if line.endswith("}"))
        except ValueError as error:
            raise ConfigError(f"{path} is not a journal of a search: {error}") from None
        if kept != json.loads(json.dumps(subject)):
            raise ConfigError(f"{path} holds timings of other routes, shapes or versions; name another --journal")
        for entry in entries:
            self._times.setdefault(entry["of"], []).append(entry["us"])
        self.num_known = len(entries)

    def _write(self, entry: dict[str, Any]) -> None:
        self._file.write(json.dumps(entry) + "\n")
        self._file.flush()
