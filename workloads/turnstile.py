"""Lets one request start in each turn of the event loop: a hundred starts must not hold up what arrives meanwhile.

When a batch of answers ends in the same step, all slots want to send at once; a 64K-token prompt is half a megabyte.
The order of asking is the order of starting, and arrivals are read between two starts.
"""

import asyncio
from collections import deque


class Turnstile:
    """Used by all senders of one event loop."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_turning = False

    async def turn(self) -> None:
        """Return when it is the caller's turn."""
        loop = asyncio.get_running_loop()
        if not self._is_turning:  # nobody has started in this turn: an empty slot waits for nothing
            self._is_turning = True
            loop.call_soon(self._next, loop)
            return
        future = loop.create_future()
        self._waiting.append(future)
        await future

    def _next(self, loop: asyncio.AbstractEventLoop) -> None:
        while self._waiting and self._waiting[0].done():
            self._waiting.popleft()  # its task was cancelled
        if not self._waiting:
            self._is_turning = False
            return
        self._waiting.popleft().set_result(None)
        loop.call_soon(self._next, loop)
