"""Plays one scenario on a running cluster and judges what came of it."""

import json
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import httpx

from tests.faults.scenarios import Scenario
from tests.support.cluster import Ask, Cluster, Instance, Wanted, new_room
from tests.support.routing import free_port
from tests.support.wire import Wire, lose_once, pass_on

SETTINGS = {
    "scheduler.chunk_tokens": 64,
    "scheduler.max_prefill_tokens": 128,
    "disagg.heartbeat_interval_s": 0.7,
    "disagg.bootstrap_timeout_s": 6.0,
    "disagg.transfer_timeout_s": 10.0,
    "disagg.abort_ack_timeout_s": 4.0,
    "disagg.delay_s": 0.7,
}
VICTIM_TOKENS, OTHER_TOKENS = 48, 12
VICTIM = [5 + i * 7 % 800 for i in range(1100)]
OTHERS = [[11 + i * (3 + k) % 700 for i in range(90 + 40 * k)] for k in range(3)]
SHORT_STOP_S, LONG_STOP_S = 0.7, 5.0
RECOVERY_LIMIT_S = 30.0


@dataclass
class Result:
    """What a scenario showed. `recovery_s`: from the healed process to the first exact answer of each prefill."""

    scenario: Scenario
    victim: str = "none"
    others: list[str] = field(default_factory=list)
    fault_to_end_s: float = 0.0
    recovery_s: float = 0.0
    exit_code: int | None = None
    error: str = ""


class Stage:
    """A cluster with two routed prefill instances, and undisturbed answers to compare with."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.first, self.second = cluster.prefills
        self.wanted: dict[tuple[int, ...], Wanted] = {}
        self.wire = Wire(lambda: _endpoint(self.second)["address"])
        self.wire.start()
        self.fake = _FakeEndpoint(lambda: _endpoint(self.second) | {"address": self.wire.address})

    def learn(self, url: str) -> None:
        """Ask an instance of both roles for the undisturbed answers."""
        for prompt, count in ((VICTIM, VICTIM_TOKENS), *((other, OTHER_TOKENS) for other in OTHERS)):
            sampling = {"temperature": 0, "ignore_eos": True, "max_new_tokens": count}
            body = {"input_ids": prompt, "sampling_params": sampling}
            answer = httpx.post(f"{url}/generate", json=body, timeout=180).json()
            self.wanted[tuple(prompt)] = (answer["output_ids"], answer["text"])

    def close(self) -> None:
        self.wire.close()
        self.fake.close()

    def play(self, scenario: Scenario) -> Result:
        """One row: requests, the fault at its time, the end of all, healing, recovery, empty memory."""
        self._flush()
        result = Result(scenario)
        others = self._start_others(scenario)
        if scenario.who == "room":
            victim: Ask | None = getattr(self, f"_room_{scenario.how}")()
        else:
            victim = self._start_victim(scenario)
            self._reach(scenario, victim)
        start = time.monotonic()
        heal = self._inflict(scenario, victim)
        if victim is not None:
            result.victim = victim.wait().verdict(self.wanted[tuple(victim.prompt)])
            result.error = victim.error
        result.others = [ask.wait().verdict(self.wanted[tuple(ask.prompt)]) for ask in others]
        result.fault_to_end_s = time.monotonic() - start
        result.exit_code = heal()
        result.recovery_s = self._recover()
        self.cluster.wait_empty()
        return result

    # ---- requests

    def _start_others(self, scenario: Scenario) -> list[Ask]:
        if scenario.others == "none" or (scenario.when == "idle" and scenario.who != "room"):
            return []
        prefill = self.first if scenario.who == "wire" else self.second
        return [self.cluster.ask_pair(prefill, prompt, OTHER_TOKENS) for prompt in OTHERS[:2]]

    def _start_victim(self, scenario: Scenario) -> Ask | None:
        if scenario.when == "idle":
            return None
        if scenario.who == "wire":
            self._forget_direct_link()
            self.wire.treat = _treatment(scenario.how)
            return self.cluster.ask_pair(self.second, VICTIM, VICTIM_TOKENS, bootstrap_port=self.fake.port)
        if scenario.who == "prefill" or scenario.how.startswith("aborts"):
            return self.cluster.ask_pair(self.first, VICTIM, VICTIM_TOKENS)
        return self.cluster.ask(VICTIM, VICTIM_TOKENS, stream=scenario.how != "leaves_before_answer")

    def _reach(self, scenario: Scenario, victim: Ask | None) -> None:
        """Wait until the victim is where the fault is to hit it."""
        if victim is None or scenario.who == "wire":
            return
        deadline = time.monotonic() + 60
        while not self._is_at(scenario, victim):
            assert time.monotonic() < deadline, f"{scenario} was never reached: {victim.error}"
            assert victim.ended_s == 0.0, f"{scenario} was missed: {victim.status} {victim.error}"
            time.sleep(0.01)

    def _is_at(self, scenario: Scenario, victim: Ask) -> bool:
        if scenario.when == "decode" and scenario.how == "leaves_before_answer":
            return self.cluster.decode.gauges()["running"] > 0
        if scenario.when == "decode":
            return victim.num_seen >= 3
        gauges = [prefill.gauges() for prefill in self._possible_prefills(scenario)]
        if scenario.when == "prefill":
            return any(gauge["prefilling"] for gauge in gauges)
        return any(gauge["inflight"] and not gauge["prefilling"] for gauge in gauges)

    def _possible_prefills(self, scenario: Scenario) -> list[Instance]:
        direct = scenario.who == "prefill" or scenario.how.startswith("aborts")
        return [self.first] if direct else self.cluster.prefills

    # ---- faults

    def _inflict(self, scenario: Scenario, victim: Ask | None) -> Callable[[], int | None]:
        """Do it; the answer heals it, and gives an exit code where a process ended."""
        match scenario.who:
            case "client":
                assert victim is not None
                self._disturb_client(scenario, victim)
                return _nothing
            case "prefill" | "decode":
                instance = self.first if scenario.who == "prefill" else self.cluster.decode
                return self._disturb_instance(scenario, instance)
            case "router":
                return self._disturb_router(scenario)
            case "wire":
                return lambda: setattr(self.wire, "treat", pass_on)
            case _:
                return _nothing

    def _disturb_client(self, scenario: Scenario, victim: Ask) -> None:
        if scenario.how.startswith("leaves"):
            victim.hang_up()
            return
        target = self.cluster.decode if scenario.how == "aborts_on_decode" else self.first
        answer = httpx.post(f"{target.url}/abort_request", json={"rid": victim.rid}, timeout=10)
        assert answer.status_code == 200, answer.text

    def _disturb_instance(self, scenario: Scenario, instance: Instance) -> Callable[[], int | None]:
        if scenario.how in ("stops_shortly", "stops_for_long"):
            instance.signal(signal.SIGSTOP, http=False)
            pause_s = SHORT_STOP_S if scenario.how == "stops_shortly" else LONG_STOP_S
            threading.Timer(pause_s, lambda: instance.signal(signal.SIGCONT, http=False)).start()
            return _nothing
        if scenario.how == "drains":
            instance.signal(signal.SIGTERM, worker=False)
            expected = 0
        elif scenario.how == "worker_killed":
            instance.signal(signal.SIGKILL, http=False)
            expected = 1
        else:
            instance.signal(signal.SIGKILL, worker=False)
            expected = -signal.SIGKILL

        def heal() -> int:
            code = instance.wait_dead()
            assert code == expected, f"exit code {code} instead of {expected}"
            instance.restart()
            self.cluster.wait_routed()
            return code

        return heal

    def _disturb_router(self, scenario: Scenario) -> Callable[[], int | None]:
        router = self.cluster.router
        assert router is not None
        if scenario.how == "stops_shortly":
            router.send_signal(signal.SIGSTOP)
            threading.Timer(SHORT_STOP_S, lambda: router.send_signal(signal.SIGCONT)).start()
            return _nothing
        router.kill()

        def heal() -> int:
            code = router.wait(10)
            self.cluster.start_router()
            return code

        return heal

    # ---- rooms

    def _room_reaches_prefill_alone(self) -> Ask:
        return self._one_sided(self.first)

    def _room_reaches_decode_alone(self) -> Ask:
        return self._one_sided(self.cluster.decode)

    def _one_sided(self, instance: Instance) -> Ask:
        ask = self._ask_whole(only=instance)
        assert ask.status == 504, (ask.status, ask.error)
        return ask

    def _room_is_used_again(self) -> Ask:
        room = new_room()
        before = self.cluster.ask_pair(self.first, OTHERS[2], OTHER_TOKENS, bootstrap_room=room).wait()
        assert before.verdict(self.wanted[tuple(OTHERS[2])]) == "exact"
        again = self._ask_whole(bootstrap_room=room)
        assert again.status == 400 and "room of its own" in again.error, (again.status, again.error)
        return again

    def _room_is_used_twice_at_once(self) -> Ask:
        room = new_room()
        first = self.cluster.ask_pair(self.first, VICTIM, VICTIM_TOKENS, bootstrap_room=room)
        time.sleep(0.3)
        second = self._ask_whole(bootstrap_room=room)
        assert second.status == 400, (second.status, second.error)
        return first

    def _room_has_unequal_prompts(self) -> Ask:
        ask = self._ask_whole(prefill_prompt=OTHERS[2][:-1])
        assert "same tokenizer" in ask.error, ask.error
        return ask

    def _room_names_a_closed_port(self) -> Ask:
        ask = self._ask_whole(bootstrap_port=free_port())
        assert ask.status == 503 and "nobody listens" in ask.error, (ask.status, ask.error)
        return ask

    def _room_names_no_prefill(self) -> Ask:
        ask = self._ask_whole(bootstrap_port=self.cluster.decode.port)
        assert ask.status == 503 and "not a prefill instance" in ask.error, (ask.status, ask.error)
        return ask

    def _ask_whole(self, **changes: Any) -> Ask:
        """Without streaming, so that a failure has a status and a sentence."""
        return self.cluster.ask_pair(self.first, OTHERS[2], OTHER_TOKENS, stream=False, **changes).wait(30)

    # ---- before and after

    def _flush(self) -> None:
        for instance in self.cluster.instances:
            answer = httpx.post(f"{instance.url}/flush_cache", timeout=30)
            assert answer.status_code == 200, answer.text

    def _forget_direct_link(self) -> None:
        """Decode keeps one link to an instance, whatever names it; a fresh instance is met through the wire first."""
        self.second.signal(signal.SIGTERM, worker=False)
        code = self.second.wait_dead()
        assert code == 0, code
        self.second.restart()
        self.wire.reconnect()
        self.cluster.wait_routed()

    def _recover(self) -> float:
        """Seconds until each prefill instance answers exactly again, through the router too."""
        start = time.monotonic()
        wanted = self.wanted[tuple(OTHERS[2])]
        missing: list[Instance | None] = [*self.cluster.prefills, None, None]  # None: through the router
        while missing:
            asks = [(to, self._ask_other(to)) for to in missing]
            missing = [to for to, ask in asks if ask.wait().verdict(wanted) != "exact"]
            verdicts = {ask.verdict(wanted) for _, ask in asks}
            assert verdicts <= {"exact", "clean"}, "wrong tokens after the fault"
            errors = [ask.error for _, ask in asks if ask.error]
            assert not missing or time.monotonic() - start < RECOVERY_LIMIT_S, f"no recovery: {errors}"
        return time.monotonic() - start

    def _ask_other(self, to: Instance | None) -> Ask:
        if to is None:
            return self.cluster.ask(OTHERS[2], OTHER_TOKENS)
        return self.cluster.ask_pair(to, OTHERS[2], OTHER_TOKENS)


def problems(result: Result) -> list[str]:
    """What a result does not fulfil; empty when the scenario is passed."""
    row = result.scenario
    found = []
    if not _fulfils(result.victim, row.victim):
        found.append(f"the victim is {result.victim}, not {row.victim} ({result.error})")
    found += [f"another request is {got}, not {row.others}" for got in result.others if not _fulfils(got, row.others)]
    if result.recovery_s > RECOVERY_LIMIT_S:
        found.append(f"recovery took {result.recovery_s:.1f} s")
    return found


def _fulfils(got: str, asked: str) -> bool:
    if asked == "gone":
        return got in ("clean", "exact")
    if asked == "none":
        return got == "none"
    return got == asked or (asked == "either" and got in ("exact", "clean"))


def _treatment(how: str) -> Any:
    def slow(direction: str, tag: str, body: bytes) -> list[bytes]:
        del direction, tag
        time.sleep(0.1)
        return [body]

    return {
        "loses_reserve": lose_once("announce", "reserve"),
        "loses_done": lose_once("done"),
        "loses_beat_and_pulse": lose_once("beat", "pulse"),
        "says_all_twice": lambda direction, tag, body: [body, body],
        "is_silent": _silent_after("reserve"),
        "is_slow": slow,
    }[how]


def _silent_after(tag_before: str) -> Any:
    state = {"silent": False}

    def treat(direction: str, tag: str, body: bytes) -> list[bytes]:
        del direction
        silent = state["silent"]
        state["silent"] = silent or tag == tag_before
        return [] if silent else [body]

    return treat


def _nothing() -> None:
    return None


def _endpoint(instance: Instance) -> dict[str, str]:
    answer: dict[str, str] = httpx.get(f"{instance.url}/disagg/endpoint", timeout=10).json()
    return answer


class _FakeEndpoint:
    """Publishes a control address that leads through the wire."""

    def __init__(self, endpoint: Callable[[], dict[str, str]]) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = json.dumps(endpoint()).encode()
                self.send_response(200)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *arguments: object) -> None:
                del arguments

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
