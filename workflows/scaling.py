"""Published lengths and loads, made to fit a testbed.

Knows nothing of engines. Prompts, outputs and concurrency each have one divisor; the shared share of a prompt keeps its
value, since it is what the ladders vary. Both sides of the scaling go into the plan.
"""

import dataclasses

from workflows.schema import QuestionRules, SuiteWorkload, Testbed

PUBLISHED_MARGIN = 8 / 132
"""By how much the published client's concurrency (140) exceeds the running limit of the last row (132)."""


@dataclasses.dataclass(frozen=True, slots=True)
class Shape:
    """Lengths in tokens and the client's concurrency."""

    input_len: int
    output_len: int
    shared_ratio: float
    concurrency: int
    questions: int | None = None
    """Questions of a pass, where answers are scored."""

    @property
    def shared_len(self) -> int:
        """Prompt tokens that all requests have in common."""
        return round(self.input_len * self.shared_ratio)


def published_shape(workload: SuiteWorkload, concurrency: int) -> Shape:
    """The shape as published, with a row's own concurrency."""
    return Shape(workload.input_len, workload.output_len, workload.shared_ratio, concurrency, workload.questions)


def scaled(shape: Shape, testbed: Testbed, workload: str) -> Shape:
    """The same traffic on this testbed."""
    if shape.questions is not None:
        return _asked(shape, testbed.questions.get(workload) or QuestionRules())
    scaling, by = testbed.scaling, testbed.scaling.divisors(workload)
    least = min(scaling.min_concurrency, shape.concurrency)
    concurrency = max(least, round(shape.concurrency / by.concurrency_divisor))
    return Shape(
        input_len=max(2, shape.input_len // by.input_divisor),
        output_len=max(min(scaling.min_output, shape.output_len), shape.output_len // by.output_divisor),
        shared_ratio=shape.shared_ratio,
        concurrency=min(concurrency, scaling.max_concurrency or concurrency),
    )


def _asked(shape: Shape, rules: QuestionRules) -> Shape:
    """Questions keep their texts; a testbed asks fewer of them, fewer at a time, and lets answers be shorter."""
    return dataclasses.replace(
        shape,
        input_len=rules.input_len or shape.input_len,
        output_len=rules.output_len or shape.output_len,
        concurrency=rules.concurrency or shape.concurrency,
        questions=rules.count or shape.questions,
    )


def scaled_settings(settings: dict[str, object], testbed: Testbed, workload: str) -> dict[str, object]:
    """Settings that count prompt tokens, divided like the prompts, and those that count requests, like the load."""
    by = testbed.scaling.divisors(workload)

    def of(path: str, value: object) -> object:
        if not isinstance(value, int):
            return value
        if path in testbed.scaling.scaled_settings:
            return max(1, value // by.input_divisor)
        if path in testbed.scaling.scaled_counts:
            return -(-value // by.concurrency_divisor)
        return value

    return {path: of(path, value) for path, value in settings.items()}


def retuned(running_limit: int, testbed: Testbed) -> int:
    """The client's concurrency that keeps `running_limit` requests running: above it by as much as published.

    The published runs drive 140 for a limit of 132. A testbed's largest concurrency binds here too.
    """
    wanted = running_limit + max(1, round(running_limit * PUBLISHED_MARGIN))
    most = testbed.scaling.max_concurrency or wanted
    return min(wanted, most)
