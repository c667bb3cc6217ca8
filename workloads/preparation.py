"""What happens around the load: is the server ready, flush its cache, prime prefixes, read its own counters.

Every step is recorded, because the cache's state is an input of the measurement and a flush that did not happen is the
commonest cause of a wrong number.
"""

import asyncio
import dataclasses
from collections.abc import Sequence
from typing import Any

import aiohttp

from workloads.connection import CONNECT_TIMEOUT_S, KEEP_ALIVE_S
from workloads.stream import Sender, Ticket, now_s
from workloads.traffic import Prompt

_RETRY_S = 0.25
BUSY = (400, 409, 423, 425, 429, 503)
"""Answers to a flush that mean: try again."""


class NotReadyError(RuntimeError):
    """The server did not become ready in time."""


@dataclasses.dataclass(slots=True)
class FlushReport:
    """How a flush went: `ok`, `busy` (still, at the timeout), `refused` or `skipped`."""

    status: str
    attempts: int
    seconds: float
    detail: str


def http_session() -> aiohttp.ClientSession:
    """A session for the requests that are not measured."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S),
        trust_env=False,
    )


async def wait_ready(http: aiohttp.ClientSession, url: str, sender: Sender, prompt: Prompt, timeout_s: float) -> float:
    """Wait for GET /health 200 and one real generation; returns the seconds. Raises NotReadyError."""
    started, last = now_s(), "no answer yet"
    while (left := timeout_s - (now_s() - started)) > 0:
        try:
            async with http.get(f"{url}/health", timeout=aiohttp.ClientTimeout(total=min(5.0, left))) as response:
                last = f"/health answers {response.status}"
                is_up = response.status == 200
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            is_up, last = False, f"/health: {type(error).__name__}"
        if is_up:
            try:
                async with asyncio.timeout(left):
                    exchange = await sender.send(_ticket(sender, prompt, "ready", 0))
            except TimeoutError:
                break
            if exchange.record.ok:
                return now_s() - started
            last = f"a first generation fails: {exchange.record.error}"
        await asyncio.sleep(_RETRY_S)
    raise NotReadyError(f"{url} was not ready within {timeout_s:g} s ({last})")


async def flush(http: aiohttp.ClientSession, urls: Sequence[str], timeout_s: float) -> FlushReport:
    """POST /flush_cache to every URL, again while a server is busy, until `timeout_s`."""
    started, attempts = now_s(), 0
    for url in urls:
        while True:
            attempts += 1
            left = timeout_s - (now_s() - started)
            status, text = await _flush_once(http, url, left)
            if status == 200:
                break
            if status not in BUSY and status != 0:
                return FlushReport("refused", attempts, now_s() - started, f"{url}: {status} {text}")
            if timeout_s - (now_s() - started) <= _RETRY_S:
                return FlushReport("busy", attempts, now_s() - started, f"{url}: {status} {text}")
            await asyncio.sleep(_RETRY_S)
    return FlushReport("ok", attempts, now_s() - started, "")


async def prime(sender: Sender, prompts: Sequence[Prompt], repeats: int) -> dict[str, Any]:
    """Send every prefix `repeats` times, one after the other."""
    started, failed, first = now_s(), 0, ""
    for i in range(repeats):
        for j, prompt in enumerate(prompts):
            exchange = await sender.send(_ticket(sender, prompt, f"prime-{i}", j))
            if not exchange.record.ok:
                failed += 1
                first = first or exchange.record.error or ""
    return {"num_requests": repeats * len(prompts), "num_failed": failed, "seconds": now_s() - started, "error": first}


async def server_info(http: aiohttp.ClientSession, url: str) -> dict[str, Any] | None:
    """GET /server_info (or its old name); None where neither exists."""
    for path in ("/server_info", "/get_server_info"):
        try:
            async with http.get(url + path, timeout=aiohttp.ClientTimeout(total=5)) as response:
                if response.status == 200:
                    info = await response.json(content_type=None)
                    return info if isinstance(info, dict) else None
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError):
            continue
    return None


async def counters(http: aiohttp.ClientSession, urls: Sequence[str], name: str) -> float | None:
    """The sum of a Prometheus counter over all URLs and labels; None where one does not have it."""
    total = 0.0
    for url in urls:
        try:
            async with http.get(f"{url}/metrics", timeout=aiohttp.ClientTimeout(total=5)) as response:
                text = await response.text() if response.status == 200 else ""
        except (aiohttp.ClientError, OSError, TimeoutError):
            return None
        value = parse_counter(text, name)
        if value is None:
            return None
        total += value
    return total


def parse_counter(text: str, name: str) -> float | None:
    """The sum over labels of one sample name in Prometheus text; None when absent or not a number."""
    found: list[float] = []
    for line in text.splitlines():
        sample, _, value = line.partition("}") if "{" in line else line.partition(" ")
        if not line.startswith("#") and sample.partition("{")[0].strip() == name:
            try:
                found.append(float(value.split()[0]))
            except (ValueError, IndexError):
                return None
    return sum(found) if found else None


async def _flush_once(http: aiohttp.ClientSession, url: str, left_s: float) -> tuple[int, str]:
    wait = max(1.0, min(left_s, 60.0))
    try:
        timeout = aiohttp.ClientTimeout(total=wait + 5)
        async with http.post(f"{url}/flush_cache", params={"timeout": f"{wait:g}"}, timeout=timeout) as response:
            return response.status, (await response.text())[:200]
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        return 0, f"{type(error).__name__}: {error}"


def _ticket(sender: Sender, prompt: Prompt, what: str, index: int) -> Ticket:
    rid = f"{what}-{sender.pass_index}-{index}-{now_s():.6f}"
    body = sender.wire.body(prompt, rid)
    return Ticket(phase="warmup", index=index, conversation=0, turn=0, rid=rid, prompt=prompt, body=body)
