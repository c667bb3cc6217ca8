"""Pages that requests of a workload need on a decode instance, against those that were in use.

    Lp + N x Ls:  shared whole pages once, and N times the rest of a prompt with its answer so far

in pages; without sharing Lp is nothing and Ls everything. A step plan reserves pages two verify widths ahead.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from reports.engine_log import Line
from reports.plans import instance_config, instances, verify_width


@dataclass(frozen=True, slots=True, kw_only=True)
class PageLoad:
    """The shape of a workload in pages."""

    page: int
    input_len: int
    output_len: int
    shared_len: int
    width: int = 1

    def pages(self, num_requests: int, *, is_shared: bool, at_end: bool) -> int:
        """Pages of so many requests at the start or the end of their answers; shared whole pages count once."""
        tokens = self.input_len + (self.output_len if at_end else 1)
        each = math.ceil(tokens / self.page)
        if not is_shared:
            return num_requests * each
        common = self.shared_len // self.page
        return (common if num_requests else 0) + num_requests * (each - common)

    def mean_pages(self, num_requests: float, *, is_shared: bool) -> float:
        """Lp + N x Ls, over requests that are anywhere in their answers."""
        common = self.shared_len // self.page if is_shared else 0
        ahead = 2 * self.width
        each = sum(math.ceil((self.input_len + done + ahead) / self.page) for done in range(self.output_len))
        return common + num_requests * (each / self.output_len - common)


def page_load(plan: Mapping[str, Any]) -> PageLoad | None:
    """From a session's plan; None where the plan has no shared prefix or no decode instance."""
    source = plan.get("client", {}).get("workload", {}).get("source", {})
    config = instance_config(plan, "decode")
    if config is None or "input_len" not in source:
        return None
    return PageLoad(
        page=int(config["cache"]["page_size"]),
        input_len=int(source["input_len"]),
        output_len=int(source["output_len"]),
        shared_len=round(source.get("shared_ratio", 0.0) * source["input_len"]),
        width=verify_width(config),
    )


def page_points(lines: Sequence[Line], plan: Mapping[str, Any]) -> Counter[tuple[int, int]]:
    """(requests that hold memory, pages in use) of each decode step; a request holds slots from reservation to end.

    Instances that also prefill give none: a prompt's pages come and go with its chunks.
    """
    config = instance_config(plan, "decode") or {}
    each = int(config.get("cache", {}).get("slots_per_request", 1))
    names = instances(plan, "decode") - instances(plan, "prefill")
    return Counter(
        (int(line["slots_used"]) // each, int(line["pages_used"]))
        for line in lines
        if line.get("instance") in names and line.get("slots_used")
    )


def pages_of_formula(lines: Sequence[Line], plan: Mapping[str, Any]) -> float | None:
    """Mean pages in use over Lp + N x Ls, N the mean number of requests; None where the log or plan does not say."""
    load, points = page_load(plan), page_points(lines, plan)
    config = instance_config(plan, "decode")
    if load is None or config is None or not points:
        return None
    steps = points.total()
    requests = sum(number * count for (number, _), count in points.items()) / steps
    pages = sum(used * count for (_, used), count in points.items()) / steps
    return pages / load.mean_pages(requests, is_shared=config["cache"]["prefix"] == "kv_radix")
