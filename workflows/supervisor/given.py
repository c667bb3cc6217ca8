"""What only the user of a machine can say: folders of weights and of other engines, as variables in a plan's words.

A plan keeps the variable, so that it means the same everywhere and no result records a path; a session fills it in.
"""

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from workflows.errors import SessionError
from workflows.plan import Plan

_VARIABLE = re.compile(r"^\$([A-Z][A-Z0-9_]*)(?=/|$)")


def fill(value: Any, environ: Mapping[str, str] = os.environ) -> Any:
    """Words, and lists and objects of them, with the variable that a word begins with filled in, where it is set."""
    if isinstance(value, str):
        return _VARIABLE.sub(lambda found: environ.get(found[1], found[0]), value)
    if isinstance(value, dict):
        return {key: fill(entry, environ) for key, entry in value.items()}
    return [fill(entry, environ) for entry in value] if isinstance(value, list | tuple) else value


def check(plan: Plan, environ: Mapping[str, str] = os.environ) -> None:
    """Raises SessionError for a variable that is not set, and for one under which a folder or program is missing."""
    words = sorted({word for word in _words(plan) if _VARIABLE.match(word)})
    names = sorted({found[1] for word in words if (found := _VARIABLE.match(word))})
    way = f"`np1d plan {plan.cell.suite}/{plan.cell.row} --testbed {plan.cell.testbed} --commands` shows how"
    if unset := [name for name in names if not environ.get(name)]:
        raise SessionError("not_given", f"set {' and '.join(unset)} to the folder{'s' * (len(unset) > 1)} meant; {way}")
    for word in words:
        path = Path(fill(word, environ))
        if not (os.access(path, os.X_OK) and path.is_file() if "/bin/" in word else path.exists()):
            raise SessionError("not_given", f"there is no {path}, which is the plan's {word}; {way}")


def _words(plan: Plan) -> Iterator[str]:
    yield from (word for process in plan.processes for word in process.command)
    yield str(plan.model.get("path", ""))
