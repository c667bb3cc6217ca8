"""A real HTTP server that misbehaves as told: the wire of an engine without the engine.

A `Script` says what goes wrong. Tokens have no meaning; counts, chunk sizes, timing, cache hits and failures are
exactly those of the script, so a test can compute by hand what a client must report. It serves on a thread of its own:

    with serve(Script(tokens_per_chunk=3, chunk_gap_s=0.03)) as server:
        ...server.url, server.seen...
"""

import asyncio
import contextlib
import dataclasses
import json
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

from aiohttp import web


@dataclasses.dataclass(kw_only=True)
class Script:
    """What the server does. Every default is a well-behaved server."""

    ttft_s: float = 0.005
    ttft_of: Callable[[int], float] | None = None
    """TTFT of the n-th request, instead of `ttft_s`."""
    chunk_gap_s: float = 0.002
    tokens_per_chunk: int = 1
    first_chunk_tokens: int | None = None
    stop_after: int | None = None
    """End answers after so many tokens, with finish reason stop."""
    faults_from: int = 1
    """The first request to go wrong; request 0 is the one that finds out whether the server is ready."""
    no_tokens: bool = False
    empty_text: bool = False
    """Tokens without text (as skipped special tokens give)."""
    text_of_token: str = "a"
    text_of_body: Callable[[dict[str, Any]], str] | None = None
    """The whole answer to a body, ten tokens long and ended by stop, instead of `text_of_token`."""
    input_inflation: float = 1.0
    """What the reported prompt length is multiplied with."""
    output_miscount: int = 0
    """Added to the reported output length in the last event."""
    hide_counts: bool = False
    """Leave out cached tokens and prompt tokens."""
    usage: str = "running"
    """OpenAI: `running`, `final` (last event, `choices: []`), `final_with_choice`, `none`."""
    reasoning_tokens: int = 0
    """Chat: so many tokens arrive as reasoning first."""
    split_writes: int | None = None
    """Cut the stream into TCP writes of so many bytes."""
    comments: bool = False
    """Keep-alive comments between events."""
    crlf: bool = False
    stall_after: int | None = None
    """Fall silent after so many chunks."""
    stall_request: int | None = None
    """Only the n-th request does."""
    break_after: int | None = None
    """Cut the connection after so many chunks."""
    end_early_after: int | None = None
    """End the stream cleanly after so many chunks, without a finish reason."""
    error_event_after: int | None = None
    fail_status: int = 503
    fail_every: int | None = None
    """Refuse every n-th request with `fail_status`."""
    ready_after_s: float = 0.0
    """/health answers 503 until then; the port is bound at once."""
    die_after: int | None = None
    """Close the listening socket and every connection at the n-th request."""
    flush_busy: int = 0
    """Answer 400 to so many flushes before one succeeds; -1 for ever."""
    flush_s: float = 0.0
    has_flush: bool = True
    cache_page: int = 1
    cache_tokens: int = 10_000_000
    """Capacity of the prefix cache, least recently used first out."""
    caches: bool = True
    second_tier: bool = False
    """A host cache behind the first that survives a flush."""
    accept_length: float | None = None
    slots: int | None = None
    """Requests served at a time; the rest waits."""
    counter_lag: int = 0
    """Latest requests that /metrics does not know yet."""
    num_workers: int = 1


@dataclasses.dataclass
class Seen:
    """What the server observed; the other side of every check."""

    bodies: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    num_health: int = 0
    started_s: list[float] = dataclasses.field(default_factory=list)
    ttft_s: dict[str, float] = dataclasses.field(default_factory=dict)
    """By request id: from the whole body read to the first token written."""
    in_flight: int = 0
    peak_in_flight: int = 0
    num_flushes: int = 0
    tokens_sent: int = 0
    worker_tokens: dict[int, int] = dataclasses.field(default_factory=dict)
    num_requests: int = 0
    disconnects: int = 0


class PrefixCache:
    """Prefixes in whole pages, least recently used out first; counts what it holds."""

    def __init__(self, page: int, capacity_tokens: int) -> None:
        self._page = page
        self._capacity = capacity_tokens
        self._pages: OrderedDict[int, None] = OrderedDict()

    def hit(self, ids: list[int]) -> int:
        """Leading tokens that are cached; the last token is never one of them."""
        count = 0
        for end, key in self._keys(ids):
            if key not in self._pages or end >= len(ids):
                break
            self._pages.move_to_end(key)
            count = end
        return count

    def put(self, ids: list[int]) -> None:
        """Keep all whole pages of a prompt."""
        for _, key in self._keys(ids):
            self._pages[key] = None
            self._pages.move_to_end(key)
        while len(self._pages) * self._page > self._capacity:
            self._pages.popitem(last=False)

    def clear(self) -> None:
        """Forget everything."""
        self._pages.clear()

    def _keys(self, ids: list[int]) -> Iterator[tuple[int, int]]:
        key = 0
        for end in range(self._page, len(ids) + 1, self._page):
            key = hash((key, *ids[end - self._page : end]))
            yield end, key


class FaultServer:
    """The running server."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.seen = Seen()
        self.url = ""
        self._cache = PrefixCache(script.cache_page, script.cache_tokens)
        self._host_cache = PrefixCache(script.cache_page, script.cache_tokens)
        self._born_s = time.monotonic()
        self._busy_left = script.flush_busy
        self._slots: asyncio.Semaphore | None = None
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        """Bind a free loopback port."""
        if self.script.slots:
            self._slots = asyncio.Semaphore(self.script.slots)
        app = web.Application(client_max_size=64 << 20)
        app.add_routes(
            [
                web.get("/health", self._health),
                web.get("/server_info", self._server_info),
                web.get("/v1/models", self._models),
                web.get("/model_info", self._model_info),
                web.get("/metrics", self._metrics),
                web.post("/generate", self._generate),
                web.post("/v1/completions", self._completions),
                web.post("/v1/chat/completions", self._chat),
            ]
        )
        if self.script.has_flush:
            app.add_routes([web.post("/flush_cache", self._flush)])
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0, backlog=4096)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"

    async def stop(self) -> None:
        """Close everything."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _health(self, request: web.Request) -> web.Response:
        self.seen.num_health += 1
        is_ready = time.monotonic() - self._born_s >= self.script.ready_after_s
        return web.Response(status=200 if is_ready else 503)

    async def _server_info(self, request: web.Request) -> web.Response:
        state = {"last_gen_throughput": 0.0}
        if self.script.accept_length:
            state["avg_spec_accept_length"] = self.script.accept_length
        return web.json_response({"version": "fault", "tp_size": 1, "dp_size": 1, "internal_states": [state]})

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response(
            {"object": "list", "data": [{"id": "fault", "object": "model", "max_model_len": 1 << 20}]}
        )

    async def _model_info(self, request: web.Request) -> web.Response:
        return web.json_response({"model_path": "fault", "is_generation": True})

    async def _metrics(self, request: web.Request) -> web.Response:
        count = max(0, self.seen.num_requests - self.script.counter_lag)
        return web.Response(text=f'# TYPE x counter\nsglang:num_requests_total{{model="fault"}} {count}.0\n')

    async def _flush(self, request: web.Request) -> web.Response:
        if self._busy_left:
            self._busy_left -= 1
            return web.Response(status=400, text="requests are running")
        await asyncio.sleep(self.script.flush_s)
        self.seen.num_flushes += 1
        self._cache.clear()
        return web.Response(text="flushed")

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        ids = body.get("input_ids")
        prompt = ids if ids is not None else [ord(c) for c in body["text"]]
        return await self._answer(request, body, prompt, int(body["sampling_params"]["max_new_tokens"]), GenerateVoice)

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        prompt = body["prompt"]
        ids = prompt if isinstance(prompt, list) else [ord(c) for c in prompt]
        return await self._answer(request, body, ids, int(body["max_tokens"]), CompletionsVoice)

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        ids = [ord(c) for m in body["messages"] for c in m["content"]]
        return await self._answer(request, body, ids, int(body["max_completion_tokens"]), ChatVoice)

    async def _answer(
        self, request: web.Request, body: dict[str, Any], ids: list[int], limit: int, voice: type["Voice"]
    ) -> web.StreamResponse:
        script, seen = self.script, self.seen
        seen.bodies.append(body)
        seen.started_s.append(time.monotonic())
        number = seen.num_requests
        seen.num_requests += 1
        seen.in_flight += 1
        seen.peak_in_flight = max(seen.peak_in_flight, seen.in_flight)
        try:
            if script.die_after is not None and number >= script.die_after:
                await self._die(request)
            if script.fail_every and number >= script.faults_from and (number + 1) % script.fail_every == 0:
                return web.json_response({"error": {"message": "overloaded"}}, status=script.fail_status)
            async with self._slots or contextlib.nullcontext():
                return await self._stream(request, body, ids, limit, number, voice)
        except (ConnectionResetError, asyncio.CancelledError):
            seen.disconnects += 1
            raise
        finally:
            seen.in_flight -= 1

    async def _stream(
        self, request: web.Request, body: dict[str, Any], ids: list[int], limit: int, number: int, voice: type["Voice"]
    ) -> web.StreamResponse:
        script = self.script
        total = min(limit, script.stop_after or (10 if script.text_of_body else limit))
        cached = self._lookup(ids)
        speaker = voice(script, body, len(ids), cached, limit)
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        await asyncio.sleep(script.ttft_of(number) if script.ttft_of else script.ttft_s)
        self._remember(ids)
        self.seen.ttft_s[str(body.get("rid"))] = time.monotonic() - self.seen.started_s[number]
        sent, chunk = 0, 0
        worker = number % script.num_workers
        due = time.monotonic()
        if script.no_tokens and number >= script.faults_from:
            total = 0
        while sent < total:
            if number >= script.faults_from and self._misbehave_now(chunk, number):
                await self._misbehave(request, response, chunk)
                return response
            step = script.first_chunk_tokens if chunk == 0 and script.first_chunk_tokens else script.tokens_per_chunk
            step = min(step, total - sent)
            sent, chunk = sent + step, chunk + 1
            self.seen.tokens_sent += step
            self.seen.worker_tokens[worker] = self.seen.worker_tokens.get(worker, 0) + step
            await self._write(response, speaker.tokens(sent, step, total))
            if sent < total:
                due += script.chunk_gap_s
                await asyncio.sleep(max(0.0, due - time.monotonic()))
        for payload in speaker.end(sent):
            await self._write(response, payload)
        await self._write(response, "[DONE]")
        await response.write_eof()
        return response

    def _misbehave_now(self, chunk: int, number: int) -> bool:
        s = self.script
        is_stall = s.stall_after == chunk and s.stall_request in (None, number)
        return is_stall or chunk in (s.break_after, s.end_early_after, s.error_event_after)

    async def _misbehave(self, request: web.Request, response: web.StreamResponse, chunk: int) -> None:
        s = self.script
        if s.stall_after == chunk:
            await asyncio.sleep(3600)
        elif s.error_event_after == chunk:
            await self._write(response, json.dumps({"error": {"message": "the engine failed"}}))
            await self._write(response, "[DONE]")
            await response.write_eof()
        elif s.end_early_after == chunk:
            await response.write_eof()
        elif request.transport is not None:
            request.transport.abort()

    async def _die(self, request: web.Request) -> None:
        assert self._runner is not None
        for site in list(self._runner.sites):
            await site.stop()
        if request.transport is not None:
            request.transport.abort()
        await asyncio.sleep(3600)

    async def _write(self, response: web.StreamResponse, payload: str) -> None:
        s = self.script
        end = "\r\n" if s.crlf else "\n"
        text = (f": still here{end}{end}" if s.comments else "") + f"data: {payload}{end}{end}"
        data = text.encode()
        size = s.split_writes or len(data)
        for at in range(0, len(data), size):
            await response.write(data[at : at + size])
            if s.split_writes:
                await asyncio.sleep(0)

    def _lookup(self, ids: list[int]) -> int:
        if not self.script.caches:
            return 0
        cached = self._cache.hit(ids)
        return max(cached, self._host_cache.hit(ids)) if self.script.second_tier else cached

    def _remember(self, ids: list[int]) -> None:
        if self.script.caches:
            self._cache.put(ids)
            self._host_cache.put(ids)


class Voice:
    """How an endpoint words its events."""

    def __init__(self, script: Script, body: dict[str, Any], num_prompt: int, cached: int, limit: int) -> None:
        self.script = script
        self.body = body
        self.num_prompt = round(num_prompt * script.input_inflation)
        self.cached = cached
        self.limit = limit
        self.whole = script.text_of_body(body) if script.text_of_body else None

    def delta(self, sent: int, step: int) -> str:
        """The text of the last `step` of `sent` tokens."""
        if self.whole is None:
            return self.script.text_of_token * step
        width = -(-len(self.whole) // 10)
        return self.whole[(sent - step) * width : sent * width]

    def tokens(self, sent: int, step: int, total: int) -> str:
        """The event of `step` new tokens, `sent` of `total` in all."""
        raise NotImplementedError

    def end(self, sent: int) -> list[str]:
        """Events after the last token."""
        return []

    def _finish(self, total: int) -> str:
        return "length" if total >= self.limit else "stop"


class GenerateVoice(Voice):
    """`/generate`: cumulative text, counts in meta_info."""

    def tokens(self, sent: int, step: int, total: int) -> str:
        """One event."""
        return self._event(sent, is_last=sent == total)

    def end(self, sent: int) -> list[str]:
        """An answer without a token still ends with an event."""
        return [] if sent else [self._event(0, is_last=True)]

    def _event(self, sent: int, *, is_last: bool) -> str:
        s = self.script
        meta: dict[str, Any] = {"id": self.body.get("rid"), "completion_tokens": sent, "finish_reason": None}
        if not s.hide_counts:
            meta |= {"prompt_tokens": self.num_prompt, "cached_tokens": self.cached}
        if is_last:
            kind = self._finish(sent)
            meta["finish_reason"] = {"type": kind, "length": sent} if kind == "length" else {"type": kind, "matched": 2}
            meta["completion_tokens"] = sent + s.output_miscount
            if s.accept_length:
                steps = max(1, round(sent / s.accept_length))
                meta |= {
                    "spec_verify_ct": steps,
                    "spec_accept_length": sent / steps,
                    "spec_num_correct_drafts": sent - steps,
                }
        text = "" if s.empty_text else s.text_of_token * sent
        return json.dumps({"text": text, "output_ids": [7] * sent, "meta_info": meta})


class CompletionsVoice(Voice):
    """`/v1/completions`: text deltas, usage as the script says."""

    def tokens(self, sent: int, step: int, total: int) -> str:
        """One event."""
        s = self.script
        event: dict[str, Any] = {"id": "x", "object": "text_completion", "usage": None}
        event["choices"] = [self._choice(sent, step, self._finish(sent) if sent == total else None)]
        if s.usage == "running" and self.body.get("stream_options", {}).get("continuous_usage_stats"):
            event["usage"] = self._usage(sent)
        return json.dumps(event)

    def end(self, sent: int) -> list[str]:
        """The usage event, where the script has one."""
        s = self.script
        if s.usage == "none":
            return []
        choices = [self._choice(sent, 0, None)] if s.usage == "final_with_choice" else []
        return [json.dumps({"id": "x", "choices": choices, "usage": self._usage(sent + s.output_miscount)})]

    def _usage(self, sent: int) -> dict[str, Any]:
        usage: dict[str, Any] = {"completion_tokens": sent, "total_tokens": sent + self.num_prompt}
        if not self.script.hide_counts:
            usage |= {"prompt_tokens": self.num_prompt, "prompt_tokens_details": {"cached_tokens": self.cached}}
        return usage

    def _choice(self, sent: int, step: int, finish: str | None) -> dict[str, Any]:
        return {"index": 0, "text": self.delta(sent, step), "finish_reason": finish}


class ChatVoice(CompletionsVoice):
    """`/v1/chat/completions`: deltas of reasoning first, then of content."""

    def _choice(self, sent: int, step: int, finish: str | None) -> dict[str, Any]:
        name = "reasoning_content" if sent <= self.script.reasoning_tokens else "content"
        return {"index": 0, "delta": {name: self.delta(sent, step)} if step else {}, "finish_reason": finish}


@contextlib.contextmanager
def serve(script: Script | None = None) -> Iterator[FaultServer]:
    """Serve on a thread until the block ends."""
    server = FaultServer(script or Script())
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    asyncio.run_coroutine_threadsafe(server.start(), loop).result(timeout=10)
    try:
        yield server
    finally:
        asyncio.run_coroutine_threadsafe(_end(server), loop).result(timeout=10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(timeout=10)
        loop.close()


async def _end(server: FaultServer) -> None:
    await server.stop()
    rest = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)


def main() -> None:
    """Serve in a process of its own: prints the URL, ends with its standard input."""
    script = Script(**json.loads(sys.argv[1] if len(sys.argv) > 1 else "{}"))
    with serve(script) as server:
        print(server.url, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
