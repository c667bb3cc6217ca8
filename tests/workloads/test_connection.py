"""A connection gives the bytes of an answer however framed and cut, the time of their read, and says how it broke."""

import asyncio
import contextlib
import time

import pytest

from workloads.connection import BrokenAnswerError, Connections

CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\nab\n\n\r\n3\r\ncde\r\n0\r\n\r\n"
SIZED = b"HTTP/1.1 200 OK\r\ncontent-length: 7\r\n\r\nab\n\ncde"
UNTIL_CLOSED = b"HTTP/1.1 200 OK\r\n\r\nab\n\ncde"
INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n" + SIZED
CLOSING = SIZED.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n", 1)


class Kept:
    """Keeps an answer."""

    def __init__(self, pause_s=0.0):
        self.status, self.data, self.times, self._pause_s = None, b"", [], pause_s

    def head(self, status, arrived_s):
        self.status = status

    def body(self, data, arrived_s):
        time.sleep(self._pause_s)
        self.data += data
        self.times.append(arrived_s)


@contextlib.asynccontextmanager
async def server(answer, *, piece=None, closes=False):
    """A server that sends these bytes for every request, in pieces; gives its connections and what they were sent."""
    seen = []

    async def serve(reader, writer):
        mine = bytearray()
        seen.append(mine)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
                mine += head + await reader.readexactly(length)
                for at in range(0, len(answer), piece or len(answer)):
                    writer.write(answer[at : at + (piece or len(answer))])
                    await asyncio.sleep(0.001 if piece else 0)
                if closes:
                    break
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as listener:
        with contextlib.closing(
            Connections(f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/a?b=50%25")
        ) as to:
            yield to, seen


async def ask(answer, *, times=1, kept=None, **how):
    kept = kept or Kept()
    async with server(answer, **how) as (connections, seen):
        for _ in range(times):
            await asyncio.wait_for(connections.post(b"{}", kept), 5)
            await asyncio.sleep(0.02)
    return kept, seen


@pytest.mark.parametrize("piece", [None, 1, 5])
@pytest.mark.parametrize(
    "answer", [CHUNKED, SIZED, UNTIL_CLOSED, INTERIM], ids=["chunked", "sized", "closed", "interim"]
)
def test_the_body_is_the_same_however_framed_and_cut(answer, piece):
    kept, seen = asyncio.run(ask(answer, piece=piece, closes=answer is UNTIL_CLOSED))
    assert (kept.status, kept.data) == (200, b"ab\n\ncde")
    assert seen[0].startswith(b"POST /a?b=50%25 HTTP/1.1\r\nhost: 127.0.0.1:") and seen[0].endswith(b"\r\n\r\n{}")


@pytest.mark.parametrize(
    ("answer", "closes", "connections"),
    [(CHUNKED, False, 1), (SIZED, False, 1), (SIZED, True, 3), (CLOSING, False, 3), (UNTIL_CLOSED, True, 3)],
    ids=["chunked", "sized", "server-closed", "close-announced", "until-closed"],
)
def test_a_connection_is_used_again_only_while_it_is_open(answer, closes, connections):
    kept, seen = asyncio.run(ask(answer, times=3, closes=closes))
    assert kept.data == 3 * b"ab\n\ncde" and len(seen) == connections


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"", "before the answer"),
        (CHUNKED[:-5], "in the middle of the answer"),
        (SIZED[:-1], "in the middle of the answer"),
        (b"SSH-2.0-x\r\n\r\n", "no HTTP answer"),
    ],
    ids=["silent", "half-chunked", "half-sized", "garbage"],
)
def test_a_broken_answer_says_how(answer, message):
    with pytest.raises(BrokenAnswerError, match=message):
        asyncio.run(ask(answer or b"\r\n", closes=True))


def test_what_a_receiver_raises_ends_the_exchange_and_closes():
    class Refusing(Kept):
        def body(self, data, arrived_s):
            raise ValueError("no")

    async def run():
        async with server(CHUNKED) as (connections, seen):
            with pytest.raises(ValueError, match="no"):
                await asyncio.wait_for(connections.post(b"{}", Refusing()), 5)
            await connections.post(b"{}", Kept())
            return len(seen)

    assert asyncio.run(run()) == 2


def test_an_arrival_is_the_time_of_the_read_however_slow_the_receiver():
    many = b"".join(b"1\r\na\r\n" for _ in range(20))
    answer = CHUNKED.partition(b"4\r\n")[0] + many + b"0\r\n\r\n"
    kept, _ = asyncio.run(ask(answer, kept=Kept(pause_s=0.005)))
    assert kept.data == 20 * b"a" and len(set(kept.times)) == 1
