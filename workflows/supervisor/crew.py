"""The servers, router and client of one attempt: started, watched, and ended in order.

Every process is watched all the time: a server that ends is a failure, with exit code 0 too. Durations come from the
monotonic clock, so that a jump of the wall clock changes nothing.
"""

import dataclasses
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from workflows.attempt import Attempt
from workflows.errors import SessionError
from workflows.plan import Plan, ProcessPlan
from workflows.supervisor import given, host, ports, processes
from workflows.supervisor.devices import host_gpus, on_this_host, planned_gpus
from workflows.supervisor.preflight import disk_full, is_disk_full
from workflows.supervisor.readiness import look, told
from workloads.files import write_json

ROOT = Path(__file__).resolve().parent.parent.parent
POLL_S = 0.1
STARTING = "while it was starting"
RECORD_S = 1.0
LAST_LINES = 5
HURRIED_GRACE_S = 3.0
"""What servers get to end by themselves once one of them has failed: nobody waits for their answers any more."""
CLIENT_EXITS = {
    2: ("client_refused", "the load client refused the workload"),
    3: ("not_ready", "the servers answered, but no generation came through"),
    4: ("deadline", "a measured pass hit its deadline"),
    5: ("pair_ended", "the pair ended before its time"),
    6: ("invalid_probe", "the first probe of an operating point was INVALID"),
    7: ("no_point", "no concurrency keeps the service levels"),
    130: ("interrupted", "the load client was interrupted"),
}


@dataclasses.dataclass(slots=True)
class Member:
    """One running process."""

    plan: ProcessPlan
    popen: "subprocess.Popen[bytes]"
    is_ready: bool = False
    word: str = "no answer yet"


class Crew:
    """All processes of one attempt."""

    def __init__(
        self,
        plan: Plan,
        attempt: Attempt,
        state: Path,
        check_interrupt: Callable[[], None],
        *,
        skip_blocks: int = 0,
        baton: Path | None = None,
    ) -> None:
        """`baton`: of a pair, the socket over which the client hears when to measure."""
        self._plan = plan
        self._attempt = attempt
        self._state = state
        self._check_interrupt = check_interrupt
        self._baton = baton
        names = [name for process in plan.processes for name in process.ports]
        self._block = ports.take_block(names, plan.limits.port_base, state / "ports", skip=skip_blocks)
        self._members: list[Member] = []
        self._client: subprocess.Popen[bytes] | None = None
        self._recorded_s = 0.0
        self._begun_s = 0.0
        self._shown = 0

    def run(self) -> None:
        """Everything from the first start to the proof that nothing is left. Raises SessionError."""
        attempt = self._attempt
        attempt.provenance["ports"] = self._block.ports
        servers_grace_s: float | None = HURRIED_GRACE_S
        try:
            started = time.monotonic()
            self._start_servers()
            self._wait_ready(started + self._plan.limits.ready_timeout_s)
            ready = time.monotonic()
            attempt.say(f"{len(self._members)} processes ready after {ready - started:.1f} s; measuring")
            attempt.provenance["timings_s"]["ready"] = ready - started
            attempt.provenance["instances"] = self._instances()
            self._measure(ready + self._plan.limits.deadline_s)
            attempt.provenance["timings_s"]["measure"] = time.monotonic() - ready
            servers_grace_s = None
        finally:
            self._end(servers_grace_s)
        _merge_engine_logs(self._plan, attempt.folder)

    def serve(self, keep_on: Callable[[], bool]) -> None:
        """Servers and router until an interrupt, or until `keep_on` says no. Raises SessionError."""
        try:
            self._start_servers()
            self._wait_ready(time.monotonic() + self._plan.limits.ready_timeout_s)
            port = self._block.ports[self._plan.client.url_port]
            self._attempt.say(f"ready at http://127.0.0.1:{port}; Ctrl-C stops it")
            while keep_on():
                self._watch("while it served")
        finally:
            self._end()

    def _start_servers(self) -> None:
        for process in self._plan.processes:
            for name, content in process.files.items():
                write_json(self._attempt.folder / name, content)
        self._begun_s = time.monotonic()
        self._start_due()
        if not self._plan.processes:
            return
        names = " ".join(process.name for process in self._plan.processes)
        self._attempt.say(f"starting {names} on ports from {min(self._block.ports.values())}")

    def _start_due(self) -> None:
        """Start every process that waits for none that is not ready."""
        begun = {member.plan.name for member in self._members}
        ready = {member.plan.name for member in self._members if member.is_ready}
        for process in self._plan.processes:
            if process.name not in begun and ready.issuperset(process.after):
                self._members.append(Member(process, self._start(process.name, process.command, process.env)))

    def _start(self, name: str, command: tuple[str, ...], env: dict[str, str]) -> "subprocess.Popen[bytes]":
        filled = [self._fill(argument) for argument in command]
        env = on_this_host(env)
        self._attempt.provenance["commands"][name] = {"argv": list(command), "env": env}
        try:
            return processes.start(filled, env=env, log=self._attempt.folder / f"{name}.log", cwd=ROOT)
        except OSError as error:
            raise SessionError("cannot_start", f"{name} cannot be started: {error.strerror} ({filled[0]})") from None

    def _fill(self, argument: str) -> str:
        argument = argument.replace("{python}", sys.executable).replace("{dir}", str(self._attempt.folder.resolve()))
        argument = argument.replace("{baton}", str(self._baton))
        for name, port in self._block.ports.items():
            argument = argument.replace(f"{{port:{name}}}", str(port))
        return str(given.fill(argument))

    def _wait_ready(self, until: float) -> None:
        while waiting := [member for member in self._members if not member.is_ready]:
            for member in waiting:
                self._watch(STARTING)
                self._look_at(member)
            self._start_due()
            if time.monotonic() > until:
                slow = ", ".join(f"{m.plan.name} ({m.word})" for m in waiting)
                limit = self._plan.limits.ready_timeout_s
                raise SessionError("not_ready", f"not ready within {limit:.0f} s: {slow}")
            time.sleep(POLL_S)

    def _look_at(self, member: Member) -> None:
        ready = member.plan.ready
        probe = look(self._block.ports[member.plan.ports[0]], ready.path, ready.healthy_workers)
        member.is_ready, member.word = probe.is_ready, probe.word
        if member.is_ready:
            seconds = time.monotonic() - self._begun_s
            self._attempt.provenance.setdefault("ready_s", {})[member.plan.name] = seconds

    def _instances(self) -> dict[str, dict[str, object]]:
        """What each instance says it planned for memory and bound for each op; nothing where an engine says neither."""
        found = {}
        for member in self._members:
            if member.plan.role != "router":
                info = told(self._block.ports[member.plan.ports[0]], "/server_info")
                found[member.plan.name] = {name: info[name] for name in ("plan", "impls", "version") if info.get(name)}
        return found

    def _measure(self, until: float) -> None:
        write_json(self._attempt.folder / "workload.json", given.fill(self._plan.client.workload))
        self._start_sampler()
        command = self._plan.client.command
        if self._baton:
            command = (*command, "--baton", "{baton}", "--no-progress")
        client = self._client = self._start("client", command, {})
        while client.poll() is None:
            self._watch("while it was measured")
            self._show_progress()
            if time.monotonic() > until:
                limit = self._plan.limits.deadline_s
                raise SessionError("deadline", f"the load did not end within {limit:.0f} s")
            time.sleep(POLL_S)
        self._watch("while it was measured")
        self._show_progress()
        self._attempt.provenance["exit_codes"]["client"] = client.returncode
        if client.returncode:
            if is_disk_full(self._attempt.folder, self._attempt.last_words("client")):
                raise disk_full("the load client could not write")
            default = ("client_died", f"the load client ended with code {client.returncode}")
            kind, sentence = CLIENT_EXITS.get(client.returncode, default)
            raise SessionError(kind, f"{sentence}: {self._last_line('client')}")

    def _start_sampler(self) -> None:
        """Where GPUs are used, what they do is recorded; without its file the session breaks a validity rule."""
        if planned := planned_gpus(self._plan):
            sampler = ("{python}", "-m", "workloads.gpu_samples", "--out", "{dir}/gpu.jsonl", "--own", str(os.getpid()))
            watched = [word for name in host_gpus(planned) for word in ("--gpu", name)]
            self._start("gpu_samples", (*sampler, *watched), {})

    def _watch(self, when: str) -> None:
        self._check_interrupt()
        for member in self._members:
            code = member.popen.poll()
            if code is not None:
                self._raise_death(member, code, when)
        if time.monotonic() - self._recorded_s > RECORD_S:
            host.record(self._state, processes.descendants())
            self._recorded_s = time.monotonic()

    def _raise_death(self, member: Member, code: int, when: str) -> None:
        name = member.plan.name
        last = self._last_line(name)
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        words = self._attempt.last_words(name, LAST_LINES)
        self._attempt.say(f"{name} {how} {when}; ending the others. Its last lines:")
        for line in words:
            self._attempt.say(f"  {name} | {line}")
        if is_disk_full(self._attempt.folder, words):
            raise disk_full(f"{name} {how} {when}")
        # whoever took the port may have answered in this member's place, so that it seemed ready
        taken = when == STARTING and "in use" in last.lower()
        raise SessionError("port_taken" if taken else "server_died", f"{name} {how} {when}: {last}")

    def _last_line(self, name: str) -> str:
        return (self._attempt.last_words(name, 1) or ["it said nothing"])[0].strip()

    def _show_progress(self) -> None:
        with (self._attempt.folder / "client.log").open("rb") as log:
            log.seek(self._shown)
            text = log.read()
        self._shown += len(text)
        for line in text.decode("utf-8", "replace").splitlines():
            if line.strip():
                sys.stderr.write(f"  {line.strip()}\n")
        sys.stderr.flush()

    def _end(self, servers_grace_s: float | None = None) -> None:
        """End everything, the client first so that it keeps its records; signals are ignored meanwhile."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        grace = self._plan.limits.grace_s
        facts = self._attempt.provenance
        clients = [self._client.pid] if self._client and self._client.poll() is None else []
        killed = processes.end_all(clients, grace_s=grace, others_grace_s=min(grace, servers_grace_s or grace))
        facts["killed"] = [self._without_paths(line) for line in killed]
        for member in self._members:
            facts["exit_codes"][member.plan.name] = member.popen.poll()
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        facts["cpu_s"] = usage.ru_utime + usage.ru_stime
        facts["ports_still_open"] = list(ports.still_open(list(self._block.ports.values())))
        self._block.release()
        host.forget(self._state)

    def _without_paths(self, text: str) -> str:
        return text.replace(str(self._attempt.folder.resolve()), "{dir}").replace(sys.executable, "{python}")


def _merge_engine_logs(plan: Plan, folder: Path) -> None:
    """One `engine.jsonl` of all instances, each line with the name of its own."""
    with (folder / "engine.jsonl").open("w", encoding="utf-8") as merged:
        for process in plan.processes:
            source = folder / f"engine_{process.name}.jsonl"
            if not source.exists():
                continue
            for line in source.read_text(encoding="utf-8").splitlines():
                try:
                    sample = json.loads(line)
                except ValueError:
                    continue  # the last line of an engine that was ended while it wrote
                merged.write(json.dumps({"instance": process.name, **sample}) + "\n")
