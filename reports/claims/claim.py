"""A published value that a run can be held against. Values are read from the published files, never typed again."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import yaml

PUBLISHED = Path(__file__).parent / "published"

Kind = Literal["ratio", "absolute", "computed"]


@dataclass(frozen=True, slots=True, order=True)
class Cell:
    """One configuration under one workload: `suite/row/workload`."""

    suite: str
    row: str
    workload: str

    def __str__(self) -> str:
        return f"{self.suite}/{self.row}/{self.workload}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """`ratio`: metric of `cell` over that of `base`; `absolute`: the metric itself; `computed`: needs no run at all.

    `band` is how far a ratio of measured to published value may lie from 1 and still count as the same.
    """

    id: str
    kind: Kind
    what: str
    metric: str
    published: float
    unit: str
    source: str
    band: float = 0.05
    cell: Cell | None = None
    base: Cell | None = None
    computed: float | None = None
    is_better_higher: bool = True


@cache
def published_h200() -> dict[str, Any]:
    """Everything that the GLM-5.3-Flash / H200 report prints."""
    loaded: dict[str, Any] = yaml.safe_load((PUBLISHED / "glm53_flash_h200.yaml").read_text())
    return loaded
