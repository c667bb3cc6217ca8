"""Published lengths and loads, made to fit a testbed.

Knows nothing of engines. Prompts, outputs and concurrency each have one divisor; the shared share of a prompt keeps its
value, since it is what the ladders vary. Both sides of the scaling go into the plan.
"""

import dataclasses

from workflows.schema import SuiteWorkload, Testbed


@dataclasses.dataclass(frozen=True, slots=True)
class Shape:
    """Lengths in tokens and the client's concurrency."""

    input_len: int
    output_len: int
    shared_ratio: float
    concurrency: int

    @property
    def shared_len(self) -> int:
        """Prompt tokens that all requests have in common."""
        return round(self.input_len * self.shared_ratio)


def published_shape(workload: SuiteWorkload, concurrency: int) -> Shape:
    """The shape as published, with a row's own concurrency."""
    return Shape(workload.input_len, workload.output_len, workload.shared_ratio, concurrency)


def scaled(shape: Shape, testbed: Testbed) -> Shape:
    """The same traffic on this testbed."""
    scaling = testbed.scaling
    least = min(scaling.min_concurrency, shape.concurrency)
    concurrency = max(least, round(shape.concurrency / scaling.concurrency_divisor))
    return Shape(
        input_len=max(2, shape.input_len // scaling.input_divisor),
        output_len=max(min(scaling.min_output, shape.output_len), shape.output_len // scaling.output_divisor),
        shared_ratio=shape.shared_ratio,
        concurrency=min(concurrency, scaling.max_concurrency or concurrency),
    )


def scaled_settings(settings: dict[str, object], testbed: Testbed) -> dict[str, object]:
    """Settings that count prompt tokens, divided like the prompts."""
    divisor = testbed.scaling.input_divisor
    return {
        path: max(1, value // divisor) if path in testbed.scaling.scaled_settings and isinstance(value, int) else value
        for path, value in settings.items()
    }
