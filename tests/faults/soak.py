"""Random load and random deaths for a long time: `python -m tests.faults.soak --minutes 30`.

Random prompts and lengths through the router, clients that leave, a worker or an instance killed every minute. At the
end there must have been no wrong token, no memory may be held, and no process may have grown.
"""

import argparse
import contextlib
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil

from stack.models.tiny import write_tiny
from tests.faults.stage import SETTINGS
from tests.support.cluster import EXACT, Ask, Cluster, Instance, Wanted
from tests.support.serving import Server

NUM_PROMPTS, MAX_TOKENS, CONCURRENCY = 16, 40, 4
KILL_EVERY_S, TELL_EVERY_S = 60.0, 60.0
SETTLED_S, GROWTH_LIMIT = 120.0, 48 * 2**20
MAX_CLEAN_SHARE = 0.5


@dataclass
class Report:
    """What a soak saw."""

    verdicts: Counter[str] = field(default_factory=Counter)
    kills: int = 0
    growth: dict[int, int] = field(default_factory=dict)
    errors: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def problems(self) -> list[str]:
        """Empty when all is well."""
        found = [f"{self.verdicts['wrong']} wrong answers"] if self.verdicts["wrong"] else []
        clean, exact = self.verdicts["clean"], self.verdicts["exact"]
        if not exact or clean / (clean + exact) > MAX_CLEAN_SHARE:
            found.append(f"only {exact} answers were exact, {clean} failed: {self.errors.most_common(3)}")
        large = ((pid, grown) for pid, grown in self.growth.items() if grown > GROWTH_LIMIT)
        return found + [f"process {pid} grew by {grown >> 20} MiB" for pid, grown in large]


class Soak:
    """One cluster under load until a time."""

    def __init__(
        self, cluster: Cluster, wanted: list[tuple[list[int], Wanted]], seconds: float, seed: int, kill_every_s: float
    ) -> None:
        self._cluster = cluster
        self._wanted = wanted
        self._started_s = time.monotonic()
        self._until_s = self._started_s + seconds
        self._kill_every_s = kill_every_s
        self._killed: tuple[float, str] | None = None
        self._draw = random.Random(seed)
        self._lock = threading.Lock()
        self._sizes: dict[int, list[tuple[float, int]]] = {}
        self.report = Report()

    def run(self) -> Report:
        """Returns when the time is over and all memory has been given back."""
        clients = [threading.Thread(target=self._client, args=(seed,)) for seed in range(CONCURRENCY)]
        for client in clients:
            client.start()
        next_kill_s = time.monotonic() + self._kill_every_s / 2
        next_tell_s = time.monotonic() + TELL_EVERY_S
        while time.monotonic() < self._until_s:
            time.sleep(1.0)
            self._weigh()
            if time.monotonic() >= next_kill_s:
                self._kill()
                next_kill_s = time.monotonic() + self._kill_every_s
            if time.monotonic() >= next_tell_s:
                self._tell()
                next_tell_s += TELL_EVERY_S
        for client in clients:
            client.join(180)
            assert not client.is_alive(), "a client never came back"
        self._cluster.wait_empty(60)
        self.report.growth = {pid: _growth(sizes) for pid, sizes in self._sizes.items()}
        return self.report

    def _client(self, seed: int) -> None:
        draw = random.Random(seed)
        while time.monotonic() < self._until_s:
            index = draw.randrange(len(self._wanted))
            prompt, wanted = self._wanted[index]
            ask = self._cluster.ask(prompt, draw.randrange(1, MAX_TOKENS), stream=draw.random() < 0.7)
            if draw.random() < 0.15:
                time.sleep(draw.random() * 3)
                ask.hang_up()
            try:
                verdict = ask.wait(150).verdict(wanted)
            except AssertionError:  # raised on this thread it would end one client and be forgotten
                verdict = "wrong"
            with self._lock:
                self.report.verdicts[verdict] += 1
                if verdict != "exact":
                    self.report.errors[ask.error[:80]] += 1
                if verdict == "wrong":
                    self.report.wrong.append(self._describe(index, ask, wanted))
            if ask.status in (0, 503):
                time.sleep(0.5)

    def _kill(self) -> None:
        victim = self._cluster.decode if self._draw.random() < 0.2 else self._draw.choice(self._cluster.prefills)
        worker = self._draw.random() < 0.5
        name = f"{victim.role} {self._cluster.instances.index(victim)} {'worker' if worker else 'http'}"
        self._killed = time.monotonic(), name
        victim.signal(signal.SIGKILL, worker=worker, http=not worker)
        victim.wait_dead()
        victim.restart()
        self._cluster.wait_routed()
        self.report.kills += 1

    def _describe(self, index: int, ask: Ask, wanted: Wanted) -> str:
        """All that is known of a wrong answer."""
        (tokens, text), ended_s = wanted, ask.ended_s or time.monotonic()
        killed = "nothing was killed before"
        if self._killed is not None:
            killed = f"ended {ended_s - self._killed[0]:.2f} s after the kill of {self._killed[1]}"
        return (
            f"prompt {index}, {ask.num_tokens} tokens asked, got {ask.tokens} {ask.text!r}, wanted "
            f"{tokens[: ask.num_tokens]} {text!r}, status {ask.status}, finish {ask.finish!r}, error {ask.error!r}, "
            f"client left: {ask.has_left}, lasted {ended_s - ask.started_s:.2f} s, {killed}"
        )

    def _tell(self) -> None:
        """A line of progress on standard error."""
        size = sum(sizes[-1][1] for pid, sizes in self._sizes.items() if psutil.pid_exists(pid))
        report, passed_s = self.report, time.monotonic() - self._started_s
        line = f"{passed_s:.0f} s: {dict(report.verdicts)}, {report.kills} kills, {size >> 20} MiB resident"
        print(line, file=sys.stderr, flush=True)

    def _weigh(self) -> None:
        now = time.monotonic()
        for instance in self._cluster.instances:
            for pid in _pids(instance):
                with contextlib.suppress(psutil.NoSuchProcess):
                    self._sizes.setdefault(pid, []).append((now, psutil.Process(pid).memory_info().rss))


def _pids(instance: Instance) -> list[int]:
    return [instance.server.process.pid, instance.server.worker_pid]


def _growth(sizes: list[tuple[float, int]]) -> int:
    """Bytes between the end and the time when caches and buffers have settled; 0 for short lives."""
    settled = [size for at, size in sizes if at - sizes[0][0] > SETTLED_S]
    return settled[-1] - settled[0] if settled else 0


def soak(minutes: float, seed: int = 0, kill_every_s: float = KILL_EVERY_S) -> Report:
    """Build a cluster, soak it, end it."""
    draw = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="np1d-soak-") as name:
        folder = Path(name)
        model = folder / "model"
        write_tiny(model, dtype="float32")
        single = Server(model, EXACT, worker="stack.engine")
        try:
            url = single.wait_ready(180).url
            wanted = [_wanted(url, draw) for _ in range(NUM_PROMPTS)]
        finally:
            single.stop()
        cluster = Cluster(folder, model, 2, SETTINGS | {"disagg.delay_s": 0.0})
        try:
            cluster.start_router()
            return Soak(cluster, wanted, minutes * 60, seed, kill_every_s).run()
        finally:
            cluster.close()


def _wanted(url: str, draw: random.Random) -> tuple[list[int], Wanted]:
    prompt = [draw.randrange(4, 900) for _ in range(draw.choice([1, 30, 64, 65, 200, 500]))]
    sampling = {"temperature": 0, "ignore_eos": True, "max_new_tokens": MAX_TOKENS}
    answer = httpx.post(f"{url}/generate", json={"input_ids": prompt, "sampling_params": sampling}, timeout=180).json()
    return prompt, (answer["output_ids"], answer["text"])


def main() -> int:
    """Exit code 0 when nothing went wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kill-every", type=float, default=KILL_EVERY_S, help="seconds between deaths")
    options = parser.parse_args()
    report = soak(options.minutes, options.seed, options.kill_every)
    print(f"{dict(report.verdicts)}, {report.kills} kills, errors {report.errors.most_common(8)}")
    print("".join(f"wrong: {line}\n" for line in report.wrong), end="")
    print("; ".join(report.problems()) or "nothing went wrong")
    return int(bool(report.problems()))


if __name__ == "__main__":
    sys.exit(main())
