"""The baton of a pair: of two load clients on one machine, only the one that holds it may send anything.

Knows nothing of engines, nor in which order the baton goes round. It comes over a Unix socket of this side's own, a
word a line. To the referee: `ready` once, `done` after each pass. From it: `go` (the baton), `end` (both sides have
measured everything, so that taking servers down disturbs nobody), `stop` and a sentence. The kernel closes the socket
of whoever dies, so nobody waits for the dead.
"""

import asyncio
from pathlib import Path


class BatonError(Exception):
    """The pair has ended before its time; the message says why."""


class Baton:
    """This side's end of the socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def reach(cls, path: Path) -> "Baton":
        """Say that this side is ready. Raises BatonError where nobody listens."""
        try:
            baton = cls(*await asyncio.open_unix_connection(path))
        except OSError as error:
            raise BatonError(f"nobody hands out a baton at {path.name} ({error.strerror})") from None
        baton._say("ready")
        return baton

    async def take(self) -> None:
        """Wait until this side may measure. Raises BatonError."""
        await self._expect("go")

    def hand_on(self) -> None:
        """A pass has ended and nothing of it is under way."""
        self._say("done")

    async def rest(self) -> None:
        """After the last pass: wait until the other side has measured its last one too. Raises BatonError."""
        await self._expect("end")

    def close(self) -> None:
        """Leave; before the end, that ends the pair."""
        self._writer.close()

    async def _expect(self, wanted: str) -> None:
        try:
            line = (await self._reader.readline()).decode("utf-8", "replace").strip()
        except OSError:
            line = ""
        word, _, sentence = line.partition(" ")
        if word == "stop":
            raise BatonError(sentence)
        if word != wanted:
            raise BatonError("the gate that handed out the baton has gone" if not line else f"a baton says {line!r}")

    def _say(self, word: str) -> None:
        self._writer.write(f"{word}\n".encode())
