"""One forward per step plan: packs it, launches it without waiting, and gives its results back when asked.

`launch` returns before the device is done; `collect` waits for one launched step. At most two steps are under way, so
two output buffers take turns. Knows no requests: rows are slots, tokens and page numbers.

Between two launches the host must not overwrite the staging buffer before the device has read it: `_await_inputs_read`
is the one place that sees to it.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from torch import Tensor

from stack.core.plan import StepPlan, StepResult
from stack.runner.decode import DecodeSteps
from stack.runner.marks import new_marks
from stack.runner.moves import Moves
from stack.runner.packing import Packer, Transfer
from stack.runner.prefill import PrefillSteps, prefill_arrays
from stack.runner.slots import SlotTable, slot_arrays
from stack.runner.speculator import Speculator
from stack.runner.stream import Stream, Submitted

if TYPE_CHECKING:
    from collections.abc import Callable

_MAX_UNDER_WAY = 2


@dataclass(frozen=True, slots=True)
class StepHandle:
    """A launched step."""

    plan: StepPlan
    submitted: Submitted
    output: "Output"

    def is_done(self) -> bool:
        """Whether `collect` would return at once."""
        return self.submitted.done.is_reached()


class Output:
    """Pinned host memory for one step's tokens and counts, and the marks of its phases."""

    def __init__(self, rows: int, width: int, device: torch.device) -> None:
        pinned = device.type == "cuda"
        self.token_RW = torch.zeros((rows, width), dtype=torch.int64, pin_memory=pinned)
        self.count_R = torch.zeros(rows, dtype=torch.int32, pin_memory=pinned)
        self.marks = new_marks(device)

    def store(self, token_RW: Tensor, count_R: Tensor | None = None) -> None:
        """Enqueue the copy of a step's results."""
        rows, width = token_RW.shape
        self.token_RW[:rows, :width].copy_(token_RW, non_blocking=True)
        if count_R is not None:
            self.count_R[:rows].copy_(count_R, non_blocking=True)


class Runner:
    """Turns step plans into work on one device."""

    def __init__(
        self,
        *,
        stream: Stream,
        slots: SlotTable,
        prefill: PrefillSteps,
        decode: DecodeSteps,
        moves: Moves,
        speculator: Speculator,
        device: torch.device,
        max_rows: int,
        war_barrier: Literal["early", "deferred"],
    ) -> None:
        self._stream = stream
        self._slots = slots
        self._prefill = prefill
        self._decode = decode
        self._moves = moves
        self._speculator = speculator
        self._war_barrier = war_barrier
        self._packer = Packer(device, 1 << 20)
        self._outputs = [Output(max_rows, speculator.width, device) for _ in range(_MAX_UNDER_WAY)]
        self._last: Submitted | None = None
        self._between: deque[Submitted] = deque()
        self._num_launched = 0

    def launch(self, plan: StepPlan) -> StepHandle:
        """Enqueue a step. Never waits for the forward of the step before, unless `war_barrier` is `early`."""
        if self._war_barrier == "deferred":
            self._await_inputs_read()
        self._packer.pack(self._arrays(plan))
        output = self._outputs[self._num_launched % _MAX_UNDER_WAY]
        self._num_launched += 1
        submitted = self._stream.submit(self._work(plan, self._packer.transfer(), output))
        self._last = submitted
        if self._war_barrier == "early":
            self._await_inputs_read()
        return StepHandle(plan, submitted, output)

    def collect(self, handle: StepHandle) -> StepResult:
        """Wait for a launched step and read its tokens. Raises what the step raised."""
        handle.submitted.done.wait()
        self._check_between()
        plan, output = handle.plan, handle.output
        if plan.kind == "decode":
            counts = output.count_R[: len(plan.decode_slots)].tolist()
            rows = output.token_RW[: len(plan.decode_slots)].tolist()
            tokens = [row[:count] for row, count in zip(rows, counts, strict=True)]
        else:
            firsts = iter(output.token_RW[: len(plan.prefill), 0].tolist())
            tokens = [[next(firsts)] if row.ends_prompt else [] for row in plan.prefill]
        phases_s = {f"{phase}_s": span_s for phase, span_s in output.marks.spans_s().items()}
        return StepResult(step=plan.step, tokens=tokens, device_s=handle.submitted.elapsed_s(), phases_s=phases_s)

    def export_extras(self, slot: int) -> bytes:
        """What another instance needs to draft for the request in `slot`, whose last step was collected."""
        return self._speculator.export_extras(slot)

    def import_extras(self, slot: int, extras: bytes) -> None:
        """Take over what another instance exported, before the next step."""
        self.submit(lambda: self._speculator.import_extras(slot, extras))

    def submit(self, work: "Callable[[], None]") -> None:
        """Run `work` in stream order, between two steps."""
        self._between.append(self._stream.submit(lambda inputs_read: work()))

    def _check_between(self) -> None:
        """Raise what work between two steps raised."""
        while self._between and self._between[0].done.is_reached():
            self._between.popleft().done.wait()

    def capture(self, max_context: int, say: "Callable[[str], None]") -> None:
        """Capture decode steps for up to `max_context` tokens a request and wait; for devices that have graphs.

        `say` hears how far it is.
        """
        self._stream.submit(lambda inputs_read: self._decode.capture(max_context, say)).done.wait()

    def close(self) -> None:
        """Finish what is under way."""
        self._stream.close()

    def _await_inputs_read(self) -> None:
        """The write-after-read barrier.

        The device reads the staging buffer when its turn comes, which is after the forward of the step before. Packing
        the next plan earlier would overwrite inputs that were not read yet, and the device would run a mixture of two
        plans. `early` waits here right after a launch: safe, but the host then cannot use that time to handle the
        results of the step before. `deferred` waits just before the next packing, when that step is long done.
        """
        if self._last is not None:
            self._last.inputs_read.wait()

    def _arrays(self, plan: StepPlan) -> dict[str, np.ndarray]:
        arrays = slot_arrays(plan)
        if plan.kind == "prefill":
            arrays |= prefill_arrays(plan.prefill)
        elif plan.kind == "decode":
            arrays |= decode_arrays(plan, self._decode.bucket(len(plan.decode_slots)))
        return arrays

    def _work(self, plan: StepPlan, transfer: Transfer, output: Output) -> "Callable[[Callable[[], None]], None]":
        def run(inputs_read: "Callable[[], None]") -> None:
            packed = transfer()
            inputs_read()
            self._moves.before(plan)
            self._slots.update(packed)
            self._forward(plan, packed, output)
            self._moves.after(plan)

        return run

    def _forward(self, plan: StepPlan, packed: Mapping[str, Tensor], output: Output) -> None:
        if plan.kind == "prefill":
            first_F = self._prefill.run(plan, packed)
            output.store(first_F[:, None])
        elif plan.kind == "decode":
            batch = self._decode.run(packed["slot"], plan.max_context, output.marks, all_greedy=plan.all_greedy)
            live = len(plan.decode_slots)
            output.store(batch.output_RW[:live], batch.count_R[:live])


def decode_arrays(plan: StepPlan, bucket: int) -> dict[str, np.ndarray]:
    """A decode step's slots, padded with the sink to `bucket` requests, as an array to pack."""
    slot_R = np.zeros(bucket, dtype=np.int32)
    slot_R[: len(plan.decode_slots)] = plan.decode_slots
    return {"slot": slot_R}
