"""JSON files of sessions: where they are, what they hold, whether a hand has changed them. Attempts are left out."""

import hashlib
import json
from pathlib import Path
from typing import Any


def files_named(folder: Path, name: str) -> list[Path]:
    """All files of that name below `folder`, in order, without those of attempts."""
    return sorted(file for file in folder.rglob(name) if "attempts" not in file.relative_to(folder).parts)


def is_session(folder: Path) -> bool:
    """Whether a folder of a cell is a session's: s0, s1 and so on. A copy under another name, s0_old, is none."""
    return folder.name[:1] == "s" and folder.name[1:].isdecimal()


def json_lines(file: Path) -> list[dict[str, Any]]:
    """The objects that a file has, one a line, oldest first; torn lines are left out."""
    found = []
    for text in file.read_text(errors="replace").splitlines():
        try:
            line = json.loads(text)
        except ValueError:
            continue
        if isinstance(line, dict):
            found.append(line)
    return found


def read_object(file: Path) -> dict[str, Any]:
    """The object that a file holds. Raises ValueError with the way out where there is none."""
    try:
        loaded = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise ValueError(f"{file.name} cannot be read; run this session again") from error
    if not isinstance(loaded, dict):
        raise ValueError(f"{file.name} holds no object; run this session again")
    return loaded


def json_of(file: Path) -> dict[str, Any]:
    """The object that a file holds; empty when it cannot be read or holds something else."""
    try:
        return read_object(file)
    except ValueError:
        return {}


def unreadable(folder: Path) -> str:
    """Which of a session's files is missing or cut, in words; empty where the session is whole."""
    for name in ("plan.json", "client.json", "provenance.json"):
        file = folder / name
        if file.exists() or name == "plan.json":
            try:
                read_object(file)
            except ValueError as error:
                return str(error)
    return ""


ALTERED = "metrics.json was changed after it was computed; delete it, and np1d run computes it from the records"


def sealed(body: dict[str, Any]) -> dict[str, Any]:
    """The body with a digest of its own content, by which a later change is seen."""
    return {**body, "digest": _digest(body)}


def is_altered(body: dict[str, Any]) -> bool:
    """Whether a sealed body is no longer what was sealed; one without a digest, of an older version, is taken as is."""
    return body.get("digest", _digest(body)) != _digest(body)


def _digest(body: dict[str, Any]) -> str:
    content = json.loads(json.dumps({name: value for name, value in body.items() if name != "digest"}))
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]
