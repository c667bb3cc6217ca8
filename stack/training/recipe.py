"""How long and in what portions to train; recipes for one H200, for one CPU core, and for a smoke test."""

import time
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Sizes of steps and learning rates. A stage's length is a time: its schedule follows the clock."""

    target_minutes: float
    drafts_minutes: float
    rows: int
    """Rows of a target step while rows are short; as many tokens a step when they are long."""
    row_tokens: int
    long_tokens: int
    """Tokens of a row in the stage's last part, with sparse attention."""
    dense_share: float = 0.4
    """Part of the target stage in which attention is dense and the indexer learns to follow it."""
    short_share: float = 0.7
    """Part of the target stage with short rows."""
    target_lr: float = 3e-3
    warmup_steps: int = 100
    weight_decay: float = 0.05
    balance_speed: float = 2e-3
    copy_weight: float = 0.5
    """Of the loss that draws one head to where the next token can be copied from."""
    eval_every: float = 0.1
    """Part of a stage between two looks at held-out questions."""
    eval_items: int = 64
    eval_shots: int = 1
    told_rows: int
    """Rows of the target's own text that the drafts learn from, and questions answered in each."""
    told_questions: int = 5
    told_tokens: int = 640
    draft_rows: int
    anchors: int = 32
    """Blocks drafted from each row in a step."""
    draft_lr: float = 2e-3


RECIPES = {
    "h200": Recipe(
        target_minutes=7.0, drafts_minutes=1.9, rows=128, row_tokens=512, long_tokens=1024, eval_items=200,
        eval_every=0.5, told_rows=4096, draft_rows=64, warmup_steps=200,
    ),
    "cpu": Recipe(
        target_minutes=50.0, drafts_minutes=20.0, rows=8, row_tokens=256, long_tokens=512, eval_items=40,
        told_rows=128, told_questions=3, told_tokens=384, draft_rows=4, anchors=16, eval_every=0.2,
    ),
    "smoke": Recipe(
        target_minutes=0.2, drafts_minutes=0.2, rows=2, row_tokens=64, long_tokens=128, eval_items=4, eval_shots=0,
        eval_every=1.0, told_rows=6, told_questions=1, told_tokens=160, draft_rows=2, anchors=4, warmup_steps=5,
    ),
}  # fmt: skip


class Clock:
    """How far a stage is: by the clock, or by steps where their number is given. Time spent earlier counts."""

    def __init__(self, minutes: float, steps: int | None, *, spent_s: float = 0.0) -> None:
        self._minutes, self._steps = minutes, steps
        self._begin = time.monotonic() - spent_s

    @property
    def spent_s(self) -> float:
        """Seconds of this stage so far, earlier runs included."""
        return time.monotonic() - self._begin

    def leave_out(self, seconds: float) -> None:
        """Time that was no training: compiling, or looking at answers."""
        self._begin += seconds

    def share(self, step: int) -> float:
        """Between 0 and 1; at 1 the stage is over."""
        if self._steps is not None:
            return min(step / self._steps, 1.0)
        return min(self.spent_s / (60 * self._minutes), 1.0)
