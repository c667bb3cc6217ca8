"""The load client: runs a workload against a URL and leaves the records of what happened.

    python -m workloads.client WORKLOAD.json --url http://127.0.0.1:30000 --out FOLDER

A pass is: warm up, flush, prime, then the measured load. `FOLDER` gets `requests.parquet`, `chunks.parquet` and
`client.json`, whole after every pass. With `--baton` two clients take turns, pass by pass (see `baton`). Exit codes: 0
done, 2 a mistake of the user, 3 the server was not ready, 4 a pass hit its deadline, 5 the other side of a pair ended,
130 interrupted (what had ended is kept). Whether the run is a result is not decided here: see `validity`.
"""

import argparse
import asyncio
import contextlib
import dataclasses
import os
import platform
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import uvloop

from workloads.baton import Baton, BatonError
from workloads.client_facts import CLIENT_FILE, CLIENT_SCHEMA
from workloads.connection import Connections
from workloads.files import write_json
from workloads.fleet import Fleet, check_open_files, fleet_for
from workloads.preparation import NotReadyError, counters, flush, http_session, prime, server_info, wait_ready
from workloads.progress import ProgressLine
from workloads.records import CHUNKS_FILE, REQUESTS_FILE, ChunkRecord, Phase, RequestRecord, schema_of, write_records
from workloads.share import Share, ShareResult
from workloads.sources import source_for
from workloads.spec import ClosedLoad, SpecError, Workload, parse
from workloads.stream import Sender, Traffic, now_s
from workloads.traffic import Prompt
from workloads.watch import lag_summary
from workloads.wire import wire_for


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where the load goes."""

    url: str
    flush_urls: tuple[str, ...] = ()
    """Servers to flush; the URL itself when empty."""
    metrics_urls: tuple[str, ...] = ()
    """Servers whose own counters are compared with ours."""
    request_counter: str = "sglang:num_requests_total"
    """The counter of finished requests in their /metrics."""

    def check(self) -> None:
        """Raise SpecError for what is no URL of a server."""
        for url in (self.url, *self.flush_urls, *self.metrics_urls):
            try:
                parts = urlsplit(url)
                is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
            except ValueError:
                is_good = False
            if not is_good:
                raise SpecError(f"{url!r} is no URL of a server; write it like http://127.0.0.1:30000")

    @property
    def flushed(self) -> tuple[str, ...]:
        """The URLs to flush."""
        return self.flush_urls or (self.url,)


PROBE_TOKENS = 32
"""Longest prompt, in tokens or characters, of the generation that shows a server to be ready."""


def run_workload(
    workload: Workload,
    target: Target,
    folder: Path,
    *,
    processes: int | None = None,
    progress: bool = True,
    baton: Path | None = None,
) -> dict[str, Any]:
    """Run all passes and write the records; returns what went into client.json.

    `baton` is the socket over which this client and another take turns. Raises SpecError, NotReadyError, BatonError.
    The folder must not hold a run already: a result is never overwritten and never mixed with another.
    """
    target.check()
    if folder.exists() and not folder.is_dir():
        raise SpecError(f"{folder} is a file; choose an empty folder")
    if any((folder / name).exists() for name in (REQUESTS_FILE, CHUNKS_FILE, CLIENT_FILE)):
        raise SpecError(f"{folder} already holds a run; choose an empty folder")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        session = Session(workload, target, folder, processes=processes, progress=progress, baton=baton)
        return runner.run(session.run())


class Session:
    """One run of a workload."""

    def __init__(
        self,
        workload: Workload,
        target: Target,
        folder: Path,
        *,
        processes: int | None,
        progress: bool,
        baton: Path | None = None,
    ) -> None:
        self._workload = workload
        self._baton_path = baton
        self._baton: Baton | None = None
        self._target = dataclasses.replace(target, url=target.url.rstrip("/"))
        self._folder = folder
        self._requests: list[RequestRecord] = []
        self._chunks: list[pa.Table] = []
        self._open_files = check_open_files(workload)
        self._connections = Connections(self._target.url + wire_for(workload).path)
        """For the requests that belong to no pass."""
        self._fleet: Fleet = fleet_for(workload, self._target.url, processes)
        self._stopped: tuple[str, str] | None = None
        self._task: asyncio.Task[Any] | None = None
        self._is_driving = False
        """The load is under way, and ends as its processes end it."""
        stream = None if progress else open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123
        self._line = ProgressLine(
            title=workload.name, passes=workload.passes, per_pass=workload.num_measured, stream=stream
        )
        self._facts: dict[str, Any] = {
            "schema": CLIENT_SCHEMA,
            "workload": workload.model_dump(mode="json"),
            "url": self._target.url,
            "started_unix_s": time.time(),
            "location": {
                "machine": platform.machine(),
                "num_cpus": os.cpu_count(),
                "python": platform.python_version(),
            },
            "num_processes": self._fleet.num_processes,
            "open_files_limit": self._open_files,
            "status": "running",
            "reason": None,
            "ready_s": None,
            "server_info": None,
            "server_info_end": None,
            "sample_body": None,
            "passes": [],
        }

    async def run(self) -> dict[str, Any]:
        """Run all passes."""
        self._task = asyncio.current_task()
        try:
            async with http_session() as http:
                with self._signals():
                    await self._run_passes(http)
        except asyncio.CancelledError:
            if self._stopped is None or self._task is None:
                raise
            self._task.uncancel()
            self._end()
        except NotReadyError as error:
            self._facts |= {"status": "not_ready", "reason": str(error)}
            self._write()
            raise
        except BatonError as error:
            self._facts |= {"status": "pair_ended", "reason": str(error)}
            self._write()
            raise
        finally:
            if self._baton:
                self._baton.close()
            self._connections.close()
            self._fleet.close()
        return self._facts

    async def _run_passes(self, http: aiohttp.ClientSession) -> None:
        url, workload = self._target.url, self._workload
        sender = self._side_sender(pass_index=0)
        self._facts["sample_body"] = _first_body(workload, url)
        self._facts["ready_s"] = await wait_ready(http, url, sender, _probe(workload), workload.timeouts.ready_s)
        self._facts["server_info"] = await server_info(http, url)
        if self._baton_path:
            self._baton = await Baton.reach(self._baton_path)
        for pass_index in range(workload.passes):
            if self._stopped is None:
                await self._run_in_turn(http, pass_index)
        if self._baton and self._stopped is None:
            await self._baton.rest()
        self._facts["server_info_end"] = await server_info(http, url)
        self._end()

    def _end(self) -> None:
        kind, sentence = self._stopped or ("complete", None)
        self._facts |= {"status": kind, "reason": sentence}
        self._write()

    async def _run_in_turn(self, http: aiohttp.ClientSession, pass_index: int) -> None:
        """A pass from its preparation to its records; of a pair, while the other side's engine has nothing to do."""
        if self._baton:
            await self._baton.take()
        await self._run_pass(http, pass_index)
        if self._baton and self._stopped is None:
            self._baton.hand_on()

    async def _run_pass(self, http: aiohttp.ClientSession, pass_index: int) -> None:
        workload = self._workload
        facts: dict[str, Any] = {"pass_index": pass_index, "seed": workload.traffic_seed(pass_index)}
        self._line.begin(pass_index)
        is_separate = not (isinstance(workload.load, ClosedLoad) and workload.load.handover)
        is_warm = workload.continued and pass_index > 0
        if is_separate and isinstance(workload.load, ClosedLoad) and workload.num_warmup and not is_warm:
            facts["warmup"] = await self._warm_up_apart()
        facts["flush"] = await self._flush(http, pass_index)
        facts["prime"] = await self._prime(pass_index)
        phases: tuple[Phase, ...] = ("warmup", "measured", "cooldown")
        facts["build_s"] = await self._fleet.build(pass_index, phases)
        before = await self._counters(http)
        self._is_driving = True
        shares = await self._fleet.run(self._line.update) if self._stopped is None else []
        self._is_driving = False
        after = await self._counters(http)
        requests = [r for share in shares for r in share.requests]
        facts |= _pass_facts(shares, requests)
        facts["server_metrics"] = _compare_counters(self._target, before, after, requests)
        self._keep(shares, facts["t0_monotonic_s"])
        self._facts["passes"].append(facts)
        stopped = next((s.stopped for s in shares if s.stopped), None)
        self._stopped = self._stopped or stopped
        self._write()

    async def _warm_up_apart(self) -> dict[str, Any]:
        """Warm-up requests that end before anything else begins, never more at a time than declared."""
        load = self._workload.load
        assert isinstance(load, ClosedLoad)
        alone = self._workload.model_copy(update={"load": load.model_copy(update={"handover": True})})
        share = Share(alone, self._target.url)
        share.build(-1, ("warmup",))
        result = await share.run(now_s())
        failed = sum(not r.ok for r in result.requests)
        return {"num_requests": len(result.requests), "num_failed": failed, "peak_in_flight": result.peak_in_flight}

    async def _flush(self, http: aiohttp.ClientSession, pass_index: int) -> dict[str, Any]:
        cache = self._workload.cache
        if cache.flush == "never" or (cache.flush == "before_session" and pass_index > 0):
            return {"status": "skipped", "attempts": 0, "seconds": 0.0, "detail": f"flush is {cache.flush}"}
        report = dataclasses.asdict(await flush(http, self._target.flushed, cache.flush_timeout_s))
        if report["status"] != "ok":
            self._line.say(f"flush is {report['status']}: {report['detail']}")
        return report

    async def _prime(self, pass_index: int) -> dict[str, Any]:
        cache = self._workload.cache
        if cache.intent != "primed" or (self._workload.continued and pass_index > 0):
            return {"num_requests": 0, "num_failed": 0, "seconds": 0.0, "error": ""}
        prefixes = source_for(self._workload).prefixes(self._workload.traffic_seed(pass_index))
        return await prime(self._side_sender(pass_index), prefixes, cache.prime_repeats)

    async def _counters(self, http: aiohttp.ClientSession) -> float | None:
        if not self._target.metrics_urls:
            return None
        return await counters(http, self._target.metrics_urls, self._target.request_counter)

    def _side_sender(self, pass_index: int) -> Sender:
        """A sender for requests that belong to no pass."""
        return Sender(
            connections=self._connections, wire=wire_for(self._workload), traffic=Traffic(), pass_index=pass_index,
            process=-1, keep_text=False,
        )  # fmt: skip

    def _keep(self, shares: Sequence[ShareResult], t0_s: float) -> None:
        for share in shares:
            for record in share.requests:
                _rebase(record, t0_s)
            place = share.chunks.schema.get_field_index("t_s")
            times = pc.subtract(share.chunks["t_s"], t0_s)
            self._requests += share.requests
            self._chunks.append(share.chunks.set_column(place, share.chunks.schema.field(place), times))

    def _write(self) -> None:
        identity = {k: str(v) for k, v in self._workload.identity.model_dump().items()}
        self._requests.sort(key=lambda r: (r.pass_index, r.request_index))
        about = {"workload": self._workload.name, **identity}
        chunks = pa.concat_tables([schema_of(ChunkRecord).empty_table(), *self._chunks])
        chunks = chunks.sort_by([(name, "ascending") for name in ("pass_index", "request_index", "chunk_index")])
        write_records(self._folder, self._requests, chunks.cast(schema_of(ChunkRecord, about)), about)
        write_json(self._folder / CLIENT_FILE, self._facts)

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()

        def stop(name: str) -> None:
            self._stopped = self._stopped or ("interrupted", f"the client received {name}")
            self._line.say("interrupted: keeping what has ended")
            self._fleet.stop(*self._stopped)
            if not self._is_driving and self._task is not None:
                self._task.cancel()  # a server that does not come up, flush or answer is not waited for

        caught: tuple[signal.Signals, ...] = (signal.SIGINT, signal.SIGTERM)
        try:
            for number in caught:
                loop.add_signal_handler(number, stop, number.name)
        except (ValueError, RuntimeError):
            caught = ()  # not the main thread: whoever started this client handles signals
        try:
            yield
        finally:
            for number in caught:
                loop.remove_signal_handler(number)


_TIMES = ("intended_start_s", "start_s", "headers_s", "first_token_s", "first_answer_s", "last_token_s", "end_s")


def _rebase(record: RequestRecord, t0_s: float) -> None:
    for name in _TIMES:
        if (value := getattr(record, name)) is not None:
            setattr(record, name, value - t0_s)


def _pass_facts(shares: Sequence[ShareResult], requests: Sequence[RequestRecord]) -> dict[str, Any]:
    """What the client knows of a pass beyond its records."""
    measured = [r for r in requests if r.phase == "measured"]
    first_sent = min((r.start_s for r in measured), default=now_s())
    planned = [s.planned_t0_s for s in shares if s.planned_t0_s is not None]
    t0 = min(planned, default=first_sent)
    ended = max((r.end_s for r in measured), default=t0)
    return {
        "t0_monotonic_s": t0,
        "t0_unix_s": t0 - now_s() + time.time(),
        "start_gap_s": first_sent - t0,
        "duration_s": ended - t0,
        "client_cpu_s": sum(s.cpu_s for s in shares),
        "peak_in_flight": sum(s.peak_in_flight for s in shares),
        "peak_in_warmup": sum(s.peak_in_warmup for s in shares),
        **lag_summary([lag for s in shares for at, lag in s.lags if t0 <= at <= ended]),
    }


def _compare_counters(
    target: Target, before: float | None, after: float | None, requests: Sequence[RequestRecord]
) -> dict[str, Any]:
    """The server's own count of requests beside ours; its metrics are only usable when both agree.

    A request that the client cut short may have been counted or not.
    """
    sent, least = len(requests), sum(r.finish_reason != "cut" for r in requests)
    if not target.metrics_urls:
        return {"usable": False, "reason": "no metrics URL was given", "counted": None, "sent": sent}
    if before is None or after is None:
        return {"usable": False, "reason": f"/metrics has no {target.request_counter}", "counted": None, "sent": sent}
    counted = after - before
    is_same = least <= counted <= sent
    reason = None if is_same else f"the server counted {counted:g} requests, the client sent {sent}"
    return {"usable": reason is None, "reason": reason, "counted": counted, "sent": sent}


def _probe(workload: Workload) -> Prompt:
    """A prompt for the readiness generation: short, and no token of the traffic; warm-up has its lengths."""
    share = source_for(workload).conversations(workload.seed("ready"), 1)[0].turns[0]
    ids = None if share.token_ids is None else share.token_ids[:PROBE_TOKENS]
    text = None if share.text is None else share.text[:PROBE_TOKENS]
    return dataclasses.replace(share, token_ids=ids, text=text, output_tokens=min(4, share.output_tokens))


def _first_body(workload: Workload, url: str) -> dict[str, Any]:
    """The first body as sent, long values shortened: what the engine was really asked."""
    share = Share(workload.model_copy(update={"requests_per_pass": 1}), url)
    share.build(0, ("measured",))
    body = orjson.loads(share.talks[0][0].body)
    return {key: _shortened(value) for key, value in body.items()}


def _shortened(value: Any) -> Any:
    if isinstance(value, list) and len(value) > 32:
        return {"length": len(value), "first": value[:8], "last": value[-8:]}
    if isinstance(value, str) and len(value) > 1000:
        return {"length": len(value), "first": value[:200], "last": value[-200:]}
    return value


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    options = _parser().parse_args(arguments)
    target = Target(
        url=options.url,
        flush_urls=tuple(options.flush_url),
        metrics_urls=tuple(options.metrics_url),
        request_counter=options.request_counter,
    )
    try:
        workload = parse(content(options.workload))
        facts = run_workload(
            workload,
            target,
            options.out,
            processes=options.processes,
            progress=not options.no_progress,
            baton=options.baton,
        )
    except (SpecError, FileNotFoundError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    except NotReadyError as error:
        sys.stderr.write(f"error: {error}\n")
        return 3
    except BatonError as error:
        sys.stderr.write(f"error: {error}\n")
        return 5
    return {"complete": 0, "interrupted": 130}.get(facts["status"], 4)


def content(path: Path) -> bytes:
    """The bytes of a workload's file. Raises SpecError."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise SpecError(f"{path} cannot be read ({error.strerror}); give a resolved workload (JSON)") from error


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is no number of processes; give 1 or more")
    return int(text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m workloads.client", description="Run a workload against a server.")
    parser.add_argument("workload", type=Path, help="resolved workload (JSON), as in a plan")
    parser.add_argument("--url", required=True, help="server or router, such as http://127.0.0.1:30000")
    parser.add_argument("--out", type=Path, required=True, help="folder for the records")
    parser.add_argument("--flush-url", action="append", default=[], help="server to flush; repeat (default: the URL)")
    parser.add_argument("--metrics-url", action="append", default=[], help="server whose /metrics is compared; repeat")
    parser.add_argument("--request-counter", default="sglang:num_requests_total", help="its counter of requests")
    parser.add_argument("--processes", type=_count, help="client processes (default: one for every 256 streams)")
    parser.add_argument("--baton", type=Path, help="socket of a referee: take turns with another client, pass by pass")
    parser.add_argument("--no-progress", action="store_true", help="print nothing but errors")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
