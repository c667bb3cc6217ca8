"""Lets one request go on the wire at a time: a hundred starts must not hold up what arrives meanwhile.

When a batch of answers ends in the same step, all slots want to send at once; a 64K-token prompt is half a megabyte,
and a hundred of them being written side by side keep the loop from reading. So the next sender starts when the one
before has written its body, in the order of asking. A server that does not take its body delays the others by `HOLD_S`
at most. Bodies go out in slices, and what has arrived is read between two slices.
"""

import asyncio
from collections import deque
from collections.abc import Callable

import aiohttp
from aiohttp.abc import AbstractStreamWriter

HOLD_S = 0.05
SLICE_BYTES = 1 << 17


class Turnstile:
    """Used by all senders of one event loop."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._hold: asyncio.TimerHandle | None = None
        self._serial = 0
        self._is_turning = False

    async def turn(self) -> Callable[[], None]:
        """Return when it is the caller's turn, with what it calls once its request is on the wire."""
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        self._waiting.append(future)
        if not self._is_turning:
            self._is_turning = True
            loop.call_soon(self._next, self._serial)
        await future
        serial = self._serial
        return lambda: self._passed(serial)

    def _passed(self, serial: int) -> None:
        if serial == self._serial and self._hold is not None:
            self._hold.cancel()
            self._hold = None
            asyncio.get_running_loop().call_soon(self._next, serial)

    def _next(self, serial: int) -> None:
        """Let the first one start that still waits; the one after it follows once that has passed, or was held long."""
        if serial != self._serial:
            return
        self._serial += 1
        while self._waiting and self._waiting[0].done():
            self._waiting.popleft()  # its task was cancelled
        if not self._waiting:
            self._is_turning = False
            self._hold = None
            return
        self._waiting.popleft().set_result(None)
        self._hold = asyncio.get_running_loop().call_later(HOLD_S, self._next, self._serial)


class SlicedBody(aiohttp.BytesPayload):
    """A request's body that leaves the loop free between its slices; `written` is called after the last one."""

    def __init__(self, body: bytes, written: Callable[[], None]) -> None:
        super().__init__(body, content_type="application/json")
        self._written = written

    async def write_with_length(self, writer: AbstractStreamWriter, content_length: int | None) -> None:
        """Write all of it; the length is the body's own."""
        view = memoryview(self._value)
        for begin in range(0, len(view), SLICE_BYTES):
            if begin:
                await asyncio.sleep(0)
            await writer.write(view[begin : begin + SLICE_BYTES])
        self._written()
