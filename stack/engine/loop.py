"""The loop of one worker: plan a step, launch it, take in the results of the step before.

With `scheduler.overlap` the host plans and launches step n + 1 while the device still runs step n, and takes in step
n's tokens after that; without, each step is taken in before the next is planned. While the host waits for step n and
the device has step n + 1 before it, `listen` may act on what happens elsewhere. Knows no sockets.
"""

import time
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from stack.core.plan import StepPlan, StepResult
from stack.scheduler import Scheduler


class LaunchedStep(Protocol):
    """A step under way."""

    @property
    def plan(self) -> StepPlan:
        """What it runs."""
        ...

    def is_done(self) -> bool:
        """Whether `collect` would return at once."""
        ...


Launched = TypeVar("Launched", bound=LaunchedStep)


class StepRunner(Protocol[Launched]):
    """What the loop needs of a runner."""

    def launch(self, plan: StepPlan) -> Launched:
        """Enqueue a step without waiting for it."""
        ...

    def collect(self, handle: Launched) -> StepResult:
        """Wait for a step."""
        ...


class Loop(Generic[Launched]):
    """Drives one scheduler and one runner, one `turn` at a time."""

    def __init__(
        self,
        scheduler: Scheduler,
        runner: StepRunner[Launched],
        *,
        overlap: bool,
        on_step: Callable[[StepPlan, StepResult], None] | None = None,
        listen: Callable[[], None] | None = None,
    ) -> None:
        """`listen` is called again and again while a step is waited for behind which another one is queued. It waits
        a millisecond or until something happens, and may call the scheduler but for `plan` and `process`."""
        self.scheduler = scheduler
        self._runner = runner
        self._overlap = overlap
        self._on_step = on_step
        self._listen = listen
        self._under_way: Launched | None = None
        self.host_s: dict[str, float] = {}
        """Seconds that parts of the last turn took on the host."""

    @property
    def is_idle(self) -> bool:
        """Whether no step is under way."""
        return self._under_way is None

    def turn(self) -> bool:
        """Launch what can run and take in what is done; False when there was nothing of either."""
        begun_s = time.perf_counter()
        plan = self.scheduler.plan()
        planned_s = time.perf_counter()
        launched = self._runner.launch(plan) if plan is not None else None
        self.host_s = {"plan_s": planned_s - begun_s, "launch_s": time.perf_counter() - planned_s}
        if self._overlap:
            launched, self._under_way = self._under_way, launched
        if launched is not None:
            self._take_in(launched)
        return plan is not None or launched is not None

    def _take_in(self, launched: Launched) -> None:
        begun_s = time.perf_counter()
        if self._listen is not None and self._under_way is not None:
            while not launched.is_done():
                self._listen()
        result = self._runner.collect(launched)
        waited_s = time.perf_counter()
        self.scheduler.process(result)
        self.host_s |= {"wait_s": waited_s - begun_s, "process_s": time.perf_counter() - waited_s}
        if self._on_step is not None:
            self._on_step(launched.plan, result)
