"""JSON files that stand beside sessions: where they are, and what they hold. Attempts are left out."""

import json
from pathlib import Path
from typing import Any


def files_named(folder: Path, name: str) -> list[Path]:
    """All files of that name below `folder`, in order, without those of attempts."""
    return sorted(file for file in folder.rglob(name) if "attempts" not in file.relative_to(folder).parts)


def json_of(file: Path) -> dict[str, Any]:
    """The object that a file holds; empty when it cannot be read or holds something else."""
    try:
        loaded = json.loads(file.read_text())
    except (OSError, ValueError):
        return {}
    return loaded if isinstance(loaded, dict) else {}
