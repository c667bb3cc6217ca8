"""YAML that remembers where each value stands, so that an error can name file and line.

Knows nothing of what the file means. A key given twice is an error. Only plain YAML is read: no tags, no objects.
"""

import dataclasses
from pathlib import Path
from typing import Any

import yaml

from workflows.errors import CatalogError

Place = tuple[str | int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class LocatedYaml:
    """The content of one file, and the line of every value in it."""

    path: Path
    data: Any
    lines: dict[Place, int]

    def where(self, *place: str | int) -> str:
        """`file:line` of the value at `place`, or of the nearest one around it that the file has."""
        for end in range(len(place), -1, -1):
            if place[:end] in self.lines:
                return f"{self.path.name}:{self.lines[place[:end]]}"
        return f"{self.path.name}:1"


def load(path: Path) -> LocatedYaml:
    """Read one file. Raises CatalogError with file and line for anything that is not plain YAML."""
    try:
        node = yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
    except FileNotFoundError:
        raise CatalogError(f"there is no file {path}") from None
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise CatalogError(f"{path.name}:{line}: not valid YAML: {error.problem}") from None
    lines: dict[Place, int] = {}
    data = _construct(node, (), lines, path) if node is not None else {}
    return LocatedYaml(path, data, lines)


def _construct(node: yaml.Node, place: Place, lines: dict[Place, int], path: Path) -> Any:
    lines[place] = node.start_mark.line + 1
    if isinstance(node, yaml.MappingNode):
        return _mapping(node, place, lines, path)
    if isinstance(node, yaml.SequenceNode):
        return [_construct(child, (*place, index), lines, path) for index, child in enumerate(node.value)]
    return yaml.SafeLoader("").construct_object(node, deep=True)


def _mapping(node: yaml.MappingNode, place: Place, lines: dict[Place, int], path: Path) -> dict[Any, Any]:
    content: dict[Any, Any] = {}
    for key_node, value_node in node.value:
        key = yaml.SafeLoader("").construct_object(key_node, deep=True)
        line = key_node.start_mark.line + 1
        if key in content:
            raise CatalogError(f"{path.name}:{line}: {key!r} is given twice; keep one of them")
        content[key] = _construct(value_node, (*place, key), lines, path)
        lines[(*place, key)] = line
    return content
