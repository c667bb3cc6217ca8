"""Where a step runs: in order, and without the host waiting.

On a GPU that is a CUDA stream. On the CPU it is one thread that takes steps from a queue, so overlap, the
write-after-read barrier and one-step-late results mean the same thing on both and can be tested without a GPU. The
thread sleeps while its queue is empty. An error in a step is kept and raised by whoever waits for that step.
"""

import queue
import threading
import time
from collections.abc import Callable
from typing import Protocol

import torch


class Mark(Protocol):
    """A point in a stream."""

    def wait(self) -> None:
        """Block until the stream has passed it; raises what the step raised."""
        ...

    def is_reached(self) -> bool:
        """Whether the stream has passed it."""
        ...


class Stream(Protocol):
    """Runs work in the order of submission."""

    def submit(self, work: Callable[[Callable[[], None]], None]) -> "Submitted":
        """Enqueue `work`. It gets a function to call once it has read all memory that it shares with the host."""
        ...

    def synchronize(self) -> None:
        """Wait until everything submitted is done."""
        ...

    def close(self) -> None:
        """Finish what was submitted and end."""
        ...


class Submitted:
    """Work under way: `inputs_read` and `done` are its two marks."""

    def __init__(self, inputs_read: Mark, done: Mark, elapsed_s: Callable[[], float]) -> None:
        self.inputs_read = inputs_read
        self.done = done
        self.elapsed_s = elapsed_s


class _ThreadMark:
    def __init__(self) -> None:
        self._event = threading.Event()
        self.error: BaseException | None = None
        self.at_s = 0.0

    def set(self) -> None:
        self.at_s = time.perf_counter()
        self._event.set()

    def is_reached(self) -> bool:
        return self._event.is_set()

    def wait(self) -> None:
        self._event.wait()
        if self.error is not None:
            raise self.error


class ThreadStream:
    """The CPU's stream: one thread, one queue."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="stream", daemon=True)
        self._thread.start()

    def submit(self, work: Callable[[Callable[[], None]], None]) -> Submitted:
        """Enqueue `work` for the thread."""
        read, done, begun = _ThreadMark(), _ThreadMark(), _ThreadMark()

        def run() -> None:
            begun.set()
            try:
                work(read.set)
            except BaseException as error:
                read.error = done.error = error
            read.set()
            done.set()

        self._queue.put(run)
        return Submitted(read, done, lambda: done.at_s - begun.at_s)

    def synchronize(self) -> None:
        """Wait for an empty step at the queue's end."""
        self.submit(lambda inputs_read: None).done.wait()

    def close(self) -> None:
        """Run what is queued, then end the thread."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        with torch.inference_mode():
            while (work := self._queue.get()) is not None:
                work()


class _CudaMark:
    def __init__(self) -> None:
        self.event = torch.cuda.Event(enable_timing=True)

    def is_reached(self) -> bool:
        return bool(self.event.query())

    def wait(self) -> None:
        self.event.synchronize()


class CudaStream:
    """A CUDA stream: `work` runs on the host at once and only enqueues. It begins behind what the device was given
    before."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)
        self._stream.wait_stream(torch.cuda.current_stream(device))

    def submit(self, work: Callable[[Callable[[], None]], None]) -> Submitted:
        """Enqueue `work`'s kernels."""
        read, done, begun = _CudaMark(), _CudaMark(), _CudaMark()
        with torch.inference_mode(), torch.cuda.stream(self._stream):
            begun.event.record(self._stream)
            work(lambda: read.event.record(self._stream))
            done.event.record(self._stream)
        return Submitted(read, done, lambda: begun.event.elapsed_time(done.event) / 1e3)

    def synchronize(self) -> None:
        """Wait for the device."""
        self._stream.synchronize()

    def close(self) -> None:
        """Wait for the device; the stream goes with its owner."""
        self._stream.synchronize()


def open_stream(device: torch.device) -> ThreadStream | CudaStream:
    """The stream for a device."""
    return CudaStream(device) if device.type == "cuda" else ThreadStream()
