"""The training log: one JSON object a line, also on stderr."""

import json
import sys
import time
from pathlib import Path
from typing import Any


class Journal:
    """Appends to `path`; `wall_s` counts from this process's start."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._begin = time.monotonic()

    def write(self, **facts: Any) -> None:
        """Note one thing."""
        rounded = {k: round(v, 6) if isinstance(v, float) else v for k, v in facts.items()}
        line = json.dumps({"wall_s": round(time.monotonic() - self._begin, 1), **rounded})
        with self._path.open("a") as file:
            file.write(line + "\n")
        sys.stderr.write(line + "\n")
