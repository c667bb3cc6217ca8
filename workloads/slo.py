"""Service levels as typed expressions: a metric, a statistic, a bound and its unit.

A level about single requests (`each`) gives goodput; a level about a statistic gives the operating point.
"""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

UNIT_OF = {"ttft": "s", "tpot": "ms", "e2e": "s"}


class Slo(BaseModel):
    """`metric` (by `statistic`) must stay under `bound`. TTFT and E2E are in seconds, TPOT in milliseconds."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    metric: Literal["ttft", "tpot", "e2e"]
    statistic: Literal["mean", "p50", "p95", "p99", "each"]
    bound: float = Field(gt=0)
    unit: Literal["s", "ms"]

    @model_validator(mode="after")
    def _unit_fits(self) -> "Slo":
        if self.unit != UNIT_OF[self.metric]:
            raise ValueError(f"{self.metric} is measured in {UNIT_OF[self.metric]}, not in {self.unit}")
        return self

    @property
    def key(self) -> str:
        """The metric's name in metrics.json; for `each` the per-request column."""
        suffix = f"_{self.unit}"
        return self.metric + suffix if self.statistic == "each" else f"{self.metric}_{self.statistic}{suffix}"

    def __str__(self) -> str:
        return f"{self.metric} {self.statistic} < {self.bound:g} {self.unit}"


PUBLISHED = (
    Slo(metric="ttft", statistic="mean", bound=6.0, unit="s"),
    Slo(metric="tpot", statistic="mean", bound=25.0, unit="ms"),
)
"""The published operating rule: mean TTFT under 6 s and TPOT under 25 ms."""
