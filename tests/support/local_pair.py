"""Instances of the real engine in this process, turn by turn: one alone, or two that meet by the real hand-off."""

import contextlib
import itertools
import json
import threading
import time
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from stack.config import EngineConfig, with_settings
from stack.core import SamplingParams, messages
from stack.core.clock import MonotonicClock
from stack.core.tokens import pack_tokens
from stack.engine.build import build_instance
from stack.engine.loop import Loop
from stack.engine.roles import Meeting, open_side

_ROOMS = itertools.count(1)


class Half:
    """One instance of any role; `tokens` and `last` hold what it said of each request.

    `held` counts pages that a test took for itself, so that the requests have fewer.
    """

    def __init__(self, config: EngineConfig) -> None:
        clock = MonotonicClock()
        self.instance = build_instance(config, clock)
        self.scheduler = self.instance.scheduler
        self.side, self.meeting = open_side(self.instance, clock)
        self.loop = Loop(self.scheduler, self.instance.runner, overlap=config.scheduler.overlap)
        self.tokens: dict[str, list[int]] = {}
        self.last: dict[str, messages.Tokens] = {}
        self.held = 0

    def turn(self) -> bool:
        """One turn of the worker's loop; False when nothing could run."""
        self.side.before_plan()
        is_busy = self.loop.turn()
        self.side.after_step()
        for message in self.scheduler.take_messages():
            self.tokens.setdefault(message.rid, []).extend(message.token_ids)
            if message.finish:
                self.last[message.rid] = message
        return is_busy

    def abort(self, rid: str) -> None:
        """The client has gone."""
        self.side.ended(self.scheduler.abort(rid), "the client has gone", 499)

    @contextlib.contextmanager
    def leave(self, num_pages: int) -> Iterator[None]:
        """Keep all but `num_pages` pages of the pool from the requests."""
        cache = self.scheduler.memory.cache
        hold = cache.admit(cache.keys([]), num_tokens=(self.instance.plan.num_pages - num_pages) * cache.page_size)
        assert hold is not None
        self.held = cache.page_counts().leased
        yield
        cache.release(hold)
        self.held = 0

    @property
    def is_empty(self) -> bool:
        """Whether no request holds memory and no step is under way."""
        cache = self.scheduler.memory.cache
        return self.scheduler.book.is_empty and self.loop.is_idle and cache.page_counts().leased == self.held

    def close(self) -> None:
        """Stop transfers, then the device."""
        self.side.close()
        self.instance.close()


class Pair:
    """A prefill and a decode instance, or one single instance, behind the same calls. Requests are named 0, 1, .."""

    def __init__(self, halves: Sequence[Half], port: int) -> None:
        self.halves, self.decode, self._port = halves, halves[-1], port
        self._rids = itertools.count()

    def ask(self, prompt: Sequence[int], sampling: SamplingParams) -> str:
        """Give a request to every half; its name."""
        rid = str(next(self._rids))
        meeting = messages.Bootstrap("127.0.0.1", self._port, next(_ROOMS)) if len(self.halves) > 1 else None
        for half in self.halves:
            half.side.begin(
                messages.Generate(rid=rid, prompt=pack_tokens(prompt), sampling=sampling, bootstrap=meeting)
            )
        return rid

    def turn(self) -> None:
        """One turn of every half; sleeps a little when none of them could run."""
        num_busy = sum(half.turn() for half in self.halves)
        if not num_busy:
            time.sleep(0.001)

    def run(
        self, prompts: Sequence[Sequence[int]], sampling: Sequence[SamplingParams], timeout_s: float = 120.0
    ) -> list[tuple[list[int], messages.Tokens]]:
        """Tokens and last message of each prompt, all at once."""
        rids = [self.ask(prompt, params) for prompt, params in zip(prompts, sampling, strict=True)]
        return self.finish(rids, timeout_s)

    def finish(self, rids: Sequence[str], timeout_s: float = 120.0) -> list[tuple[list[int], messages.Tokens]]:
        """Turn until all of `rids` ended and their memory is back."""
        deadline_s = time.monotonic() + timeout_s
        while not all(rid in self.decode.last for rid in rids) or not all(half.is_empty for half in self.halves):
            assert time.monotonic() < deadline_s, [half.scheduler.book.by_rid for half in self.halves]
            self.turn()
        return [(self.decode.tokens[rid], self.decode.last[rid]) for rid in rids]


@contextlib.contextmanager
def single(settings: dict[str, Any]) -> Iterator[Pair]:
    """One instance that does both."""
    half = Half(with_settings(EngineConfig(), settings))
    try:
        yield Pair([half], 0)
    finally:
        half.close()


@contextlib.contextmanager
def pair(
    settings: dict[str, Any], prefill: dict[str, Any] | None = None, decode: dict[str, Any] | None = None
) -> Iterator[Pair]:
    """Two instances with the same `settings`, and each its own."""
    with contextlib.ExitStack() as stack:
        halves = []
        for role, own in (("prefill", prefill or {}), ("decode", decode or {})):
            halves.append(Half(with_settings(EngineConfig(), settings | own | {"role": role})))
            stack.callback(halves[-1].close)
        server = endpoint(halves[0].meeting)
        stack.callback(server.server_close)
        stack.callback(server.shutdown)
        yield Pair(halves, server.server_address[1])


def endpoint(meeting: Meeting) -> ThreadingHTTPServer:
    """What an HTTP process answers to decode instances that ask where its worker is."""
    answer = {"address": meeting.address, "layout_hash": meeting.layout_hash, "instance": meeting.instance}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(answer).encode()
            self.send_response(200 if self.path == "/disagg/endpoint" else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    return server
