"""A real browser without a window, driven over its debugging protocol: what a page logs, fetches and how wide it is."""

import asyncio
import itertools
import json
import shutil
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)


@dataclass(slots=True)
class Seen:
    """What happened while a page was open."""

    problems: list[str] = field(default_factory=list)
    """Console errors and warnings, and uncaught exceptions."""
    fetched: list[str] = field(default_factory=list)
    """Addresses other than the page's own and data."""
    widths: dict[int, int] = field(default_factory=dict)
    """Viewport width -> width that the content takes."""
    scrolling: dict[int, list[str]] = field(default_factory=dict)
    """Viewport width -> labels of the tables that are wider than their box."""
    text: str = ""


def look_at(page: Path, viewport_widths: tuple[int, ...]) -> Seen:
    """Open a page at several widths."""
    assert CHROMIUM is not None
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:  # a child may write until it ends
        flags = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--remote-debugging-port=0",
            f"--user-data-dir={profile}",
        ]
        browser = subprocess.Popen(
            [CHROMIUM, *flags, "about:blank"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            return asyncio.run(_look(page, viewport_widths, Path(profile)))
        finally:
            browser.terminate()
            browser.wait(timeout=20)


async def _look(page: Path, viewport_widths: tuple[int, ...], profile: Path) -> Seen:
    port = await _port(profile / "DevToolsActivePort")
    async with (
        aiohttp.ClientSession() as session,
        session.ws_connect(await _target(session, port), max_msg_size=0) as socket,
    ):
        return await _Tab(socket).visit(page, viewport_widths)


async def _target(session: aiohttp.ClientSession, port: int) -> str:
    """The first page's address; the browser listens before it has one."""
    for _ in range(300):
        async with session.get(f"http://127.0.0.1:{port}/json") as answer:
            if pages := [one for one in await answer.json() if one["type"] == "page"]:
                return str(pages[0]["webSocketDebuggerUrl"])
        await asyncio.sleep(0.1)
    raise TimeoutError("the browser opened no page")


async def _port(file: Path) -> int:
    for _ in range(300):
        if file.exists() and (lines := file.read_text().splitlines()):
            return int(lines[0])
        await asyncio.sleep(0.1)
    raise TimeoutError("the browser did not start")


class _Tab:
    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._ids = itertools.count(1)
        self._events: list[dict[str, Any]] = []

    async def visit(self, page: Path, viewport_widths: tuple[int, ...]) -> Seen:
        seen = Seen()
        for domain in ("Page", "Runtime", "Log", "Network"):
            await self._ask(f"{domain}.enable")
        for width in viewport_widths:
            metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
            await self._ask("Emulation.setDeviceMetricsOverride", **metrics)
            before = len(self._events)
            await self._ask("Page.navigate", url=page.as_uri())
            await self._wait_for("Page.loadEventFired", before)
            seen.widths[width] = await self._value("document.documentElement.scrollWidth")
            seen.scrolling[width] = await self._value(_SCROLLING)
        seen.text = await self._value("document.body.innerText")
        seen.problems = [str(event["params"]) for event in self._events if _is_problem(event)]
        urls = [e["params"]["request"]["url"] for e in self._events if e["method"] == "Network.requestWillBeSent"]
        seen.fetched = [url for url in urls if url != page.as_uri() and not url.startswith("data:")]
        return seen

    async def _value(self, expression: str) -> Any:
        answer = await self._ask("Runtime.evaluate", expression=expression, returnByValue=True)
        return answer["result"]["value"]

    async def _ask(self, method: str, **params: Any) -> dict[str, Any]:
        number = next(self._ids)
        await self._socket.send_str(json.dumps({"id": number, "method": method, "params": params}))
        while True:
            message = json.loads((await self._socket.receive(timeout=60)).data)
            if message.get("id") == number:
                assert "error" not in message, message
                return message["result"]
            self._events.append(message)

    async def _wait_for(self, event: str, since: int) -> None:
        while all(one["method"] != event for one in self._events[since:]):
            self._events.append(json.loads((await self._socket.receive(timeout=60)).data))


_SCROLLING = (
    "[...document.querySelectorAll('.scroll')].filter(box => box.scrollWidth > box.clientWidth + 1)"
    ".map(box => box.getAttribute('aria-label'))"
)


def _is_problem(event: dict[str, Any]) -> bool:
    if event["method"] == "Runtime.exceptionThrown":
        return True
    if event["method"] == "Log.entryAdded":
        return event["params"]["entry"]["level"] in ("error", "warning")
    return event["method"] == "Runtime.consoleAPICalled" and event["params"]["type"] in ("error", "warning", "assert")
