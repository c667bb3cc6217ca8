"""The worker process of an instance: its loop, fed by messages from the HTTP process.

One thread, one DEALER socket. It sleeps in the poller when nothing can run, and looks at the socket without waiting
while something can. A side of a hand-off also hears while the device works, so that neither memory for a request nor
its first token waits for a step. Knows no HTTP.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
import zmq

from stack.config import EngineConfig
from stack.core import messages
from stack.core.clock import Clock, MonotonicClock
from stack.core.errors import RequestError
from stack.core.plan import StepPlan, StepResult
from stack.engine.build import Instance, build_instance
from stack.engine.heartbeat import Heartbeat
from stack.engine.loop import Loop
from stack.engine.profiling import StepProfiler
from stack.engine.roles import Meeting, open_side
from stack.engine.steplog import StepLog, gauges
from stack.scheduler import Request

_IDLE_S = 1.0
_EXPIRE_EVERY_S = 0.25
_LISTEN_MS = 1
"""How late at most the end of a step is seen while the next one runs already."""


@dataclass(frozen=True, slots=True)
class _Flush:
    call: int
    until_s: float


class Worker:
    """One instance behind a socket. `run` returns the process's exit code."""

    def __init__(self, config: EngineConfig, address: str, clock: Clock | None = None) -> None:
        self.config = config
        self.clock = clock or MonotonicClock()
        self.instance: Instance = build_instance(config, self.clock)
        self.scheduler = self.instance.scheduler
        self.side, self.meeting = open_side(self.instance, self.clock)
        events = self.side.fileno()
        listens = events is not None and config.scheduler.polling_interval == 1
        self.loop = Loop(
            self.scheduler,
            self.instance.runner,
            overlap=config.scheduler.overlap,
            on_step=self._after_step,
            listen=self._listen if listens else None,
        )
        self._log = StepLog(Path(config.server.engine_log), self.scheduler) if config.server.engine_log else None
        self._profiler = StepProfiler(torch.device(config.model.device))
        self._flushes: list[_Flush] = []
        self._drain_call: int | None = None
        self._expire_at_s = 0.0
        self._address = address
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 2000)
        self._socket.setsockopt(zmq.SNDHWM, 0)
        self._socket.setsockopt(zmq.RCVHWM, 0)
        self._socket.connect(address)
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        if events is not None:
            self._poller.register(events, zmq.POLLIN)

    def run(self) -> int:
        """Serve until drained."""
        self._say(ready_message(self.instance, self.meeting))
        heartbeat = Heartbeat(self._address, self.config.server.worker_timeout_s)
        try:
            while not self._is_drained():
                heartbeat.turned()
                if not self.turn() and not self._is_drained():
                    self._poller.poll(int(1e3 * self._sleep_s()))
            self._say(messages.Drained(call=self._drain_call or 0))
        except BaseException as error:
            self._say(messages.Fatal(message=f"the worker failed: {type(error).__name__}: {error}"))
            raise
        finally:
            heartbeat.close()
            self._socket.close()
            self._context.term()
            self.close()
        return 0

    def turn(self) -> bool:
        """Hear, step, say. False when nothing could run."""
        self._hear()
        self.side.before_plan()
        self._expire()
        is_busy = self.loop.turn()
        self.side.after_step()
        has_said = self._say_all()
        self._answer_flushes()
        return is_busy or has_said

    def close(self) -> None:
        """Stop transfers, then the device."""
        self.side.close()
        self.instance.close()
        if self._log is not None:
            self._log.close()

    # -- messages ------------------------------------------------------------------------------------------------
    def _hear(self) -> None:
        while True:
            try:
                body = self._socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._take(messages.decode_to_worker(body))

    def _take(self, message: messages.ToWorker) -> None:
        match message:
            case messages.Generate():
                self._begin(message)
            case messages.Refuse():
                self.side.refuse(message.bootstrap, message.reason, message.status)
            case messages.Abort(rid=rid):
                self._end(self.scheduler.abort(rid), "the client has gone", 499)
            case messages.Flush(call=call, timeout_s=timeout_s):
                self._flushes.append(_Flush(call, self.clock.now_s() + timeout_s))
            case messages.Drain(call=call):
                self._drain_call = call
            case messages.GetStats(call=call):
                self._say(messages.Stats(call=call, values=self._stats()))
            case messages.Profile():
                self._profile(message)

    def _begin(self, message: messages.Generate) -> None:
        try:
            if self._drain_call is not None:
                raise RequestError("this instance is shutting down and takes no new requests", status=503)
            self.side.begin(message)
        except RequestError as error:
            self.side.refuse(message.bootstrap, str(error), error.status)
            refused = messages.Tokens(
                rid=message.rid, token_ids=[], finish="abort", error=str(error), status=error.status
            )
            self._say(refused)

    def _end(self, requests: list[Request], reason: str, status: int) -> None:
        self.side.ended(requests, reason, status)

    def _expire(self) -> None:
        now_s = self.clock.now_s()
        if now_s >= self._expire_at_s:
            self._expire_at_s = now_s + _EXPIRE_EVERY_S
            self._end(self.scheduler.expire(), "the request is too old", 504)

    def _stats(self) -> dict[str, float]:
        values = gauges(self.scheduler) | self.side.counters()
        return {name: float(value) for name, value in values.items()}

    def _answer_flushes(self) -> None:
        if not self._flushes:
            return
        if self.scheduler.book.is_empty and self.loop.is_idle:
            self.scheduler.memory.flush()
            answered, reason = self._flushes, ""
        else:
            now_s = self.clock.now_s()
            answered = [flush for flush in self._flushes if flush.until_s <= now_s]
            reason = f"{len(self.scheduler.book.by_rid)} requests are running or their memory is still in use"
        for flush in answered:
            self._say(messages.Flushed(call=flush.call, reason=reason))
        self._flushes = [flush for flush in self._flushes if flush not in answered]

    def _is_drained(self) -> bool:
        return self._drain_call is not None and self.scheduler.book.is_empty and self.loop.is_idle

    def _sleep_s(self) -> float:
        now_s = self.clock.now_s()
        return max(min([now_s + _IDLE_S, *(flush.until_s for flush in self._flushes)]) - now_s, 0.001)

    def _listen(self) -> None:
        """Wait a moment for requests and for the other side of a hand-off, while a step runs; act on what comes."""
        if self._poller.poll(_LISTEN_MS):
            self._hear()
            self.side.listen()
            self._say_all()

    def _say_all(self) -> bool:
        said = self.scheduler.take_messages()
        for message in said:
            self._say(message)
        return bool(said)

    def _say(self, message: messages.FromWorker) -> None:
        self._socket.send(messages.encode(message))

    # -- steps ---------------------------------------------------------------------------------------------------
    def _after_step(self, plan: StepPlan, result: StepResult) -> None:
        if self._log is not None:
            self._log.write(plan, result, self.loop.host_s)
        if self._profiler.is_running and self._profiler.step():
            self._end_profile()

    def _profile(self, message: messages.Profile) -> None:
        if message.num_steps == 0:
            if self._profiler.is_running:
                self._end_profile()
                self._say(messages.Profiled(call=message.call, path="", reason=""))
            else:
                self._say(messages.Profiled(call=message.call, path="", reason="no trace is being recorded"))
            return
        reason = "a trace is being recorded already" if self._profiler.is_running else ""
        if not reason:
            try:
                self._profiler.start(message.call, Path(message.folder), message.num_steps)
            except OSError as error:
                reason = f"the trace folder cannot be used: {error}"
        if reason:
            self._say(messages.Profiled(call=message.call, path="", reason=reason))

    def _end_profile(self) -> None:
        call = self._profiler.call
        self._say(messages.Profiled(call=call, path=str(self._profiler.stop()), reason=""))


def ready_message(instance: Instance, meeting: Meeting) -> messages.Ready:
    """What the HTTP process learns once this one can serve."""
    plan = instance.plan
    return messages.Ready(
        max_context=plan.max_context,
        max_total_tokens=plan.max_total_tokens,
        max_running=plan.max_running,
        plan=plan.as_dict(),
        impls=instance.impls,
        disagg_address=meeting.address,
        layout_hash=meeting.layout_hash,
        instance=meeting.instance,
    )
