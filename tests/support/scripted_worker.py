"""A worker process without a model: it echoes the prompt's tokens again and again, at a scripted pace.

Run as `python -m tests.support.scripted_worker CONFIG --address ADDRESS`, through the server's `--worker-module`. Its
script is `script.json` in the model folder (see `Script`); what it hears is appended to `heard.jsonl` there.
"""

import argparse
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import zmq

from stack.config import EngineConfig, load
from stack.core import messages
from stack.core.geometry import ModelGeometry
from stack.core.tokens import unpack_tokens
from stack.engine.heartbeat import Heartbeat


class Rule(msgspec.Struct, kw_only=True):
    """How a request is served; chosen by its first prompt token, else the script's default."""

    step_s: float = 0.002
    delay_s: float = 0.0
    stuck_s: float = 0.0
    """Hold the whole loop up for so long when the request arrives."""
    width: int = 1
    """Tokens of one step; above 1 each step counts as a verify."""
    cached: int = 0
    refuse_status: int = 0
    refuse_error: str = ""
    crash_after: int = -1
    """Kill the own process after so many tokens."""
    fail_after: int = -1
    """End the request with status 500 after so many tokens."""


class Script(Rule, kw_only=True):
    """`script.json`."""

    load_s: float = 0.0
    exit_code: int = -1
    """Exit at start with this code and `last_words`."""
    last_words: str = ""
    fatal: str = ""
    """Send `Fatal` once ready, then hang."""
    busy_reason: str = ""
    """Answer to `Flush`."""
    max_context: int = 0
    rules: dict[str, Rule] = {}


class Running(msgspec.Struct, kw_only=True):
    """A request under way."""

    ask: messages.Generate
    rule: Rule
    due_s: float
    made: int = 0
    steps: int = 0


class ScriptedWorker:
    """One thread: hear, then make the tokens that are due."""

    def __init__(self, config: EngineConfig, script: Script, address: str) -> None:
        self.config = config
        self.script = script
        self.geometry = ModelGeometry.from_file(Path(config.model.path))
        self.running: dict[str, Running] = {}
        self.drain_call: int | None = None
        self.address = address
        self.socket = zmq.Context.instance().socket(zmq.DEALER)
        self.socket.connect(address)
        self.heard = (Path(config.model.path) / "heard.jsonl").open("a", buffering=1)

    def run(self) -> int:
        self.send(
            messages.Ready(
                max_context=self.script.max_context or self.geometry.max_context,
                max_total_tokens=2 * self.geometry.max_context,
                max_running=64,
                plan={"pages": 1},
                impls={"linear": "scripted"},
                disagg_address="tcp://127.0.0.1:1",
                layout_hash="scripted",
                instance="scripted-1",
            )
        )
        if self.script.fatal:
            self.send(messages.Fatal(message=self.script.fatal))
            time.sleep(600)
        heartbeat = Heartbeat(self.address, self.config.server.worker_timeout_s)
        while self.drain_call is None or self.running:
            heartbeat.turned()
            due = min((r.due_s for r in self.running.values()), default=time.monotonic() + 1.0)
            if self.socket.poll(max(0, 1000 * (due - time.monotonic()))):
                self.hear(messages.decode_to_worker(self.socket.recv()))
            for request in [r for r in self.running.values() if r.due_s <= time.monotonic()]:
                self.step(request)
        self.send(messages.Drained(call=self.drain_call))
        time.sleep(0.1)
        return 0

    def send(self, message: messages.FromWorker) -> None:
        self.socket.send(messages.encode(message))

    def hear(self, message: messages.ToWorker) -> None:
        plain = msgspec.to_builtins(message)
        if isinstance(message, messages.Generate):
            plain["token_ids"] = unpack_tokens(message.prompt)
        self.heard.write(msgspec.json.encode(plain).decode() + "\n")
        match message:
            case messages.Generate():
                self.start(message)
            case messages.Abort():
                for rid in [r for r in self.running if message.rid in ("", r)]:
                    self.end(self.running[rid], [], finish="abort", status=499)
            case messages.Flush():
                reason = self.script.busy_reason or ("requests are running" if self.running else "")
                self.send(messages.Flushed(call=message.call, reason=reason))
            case messages.GetStats():
                stats = {"running": float(len(self.running)), "waiting": 0.0, "pages_used": 1.0, "pages_total": 4.0}
                self.send(messages.Stats(call=message.call, values=stats))
            case messages.Profile():
                path = message.folder if message.num_steps else "trace.json"
                self.send(messages.Profiled(call=message.call, path=path, reason=""))
            case messages.Drain():
                self.drain_call = message.call

    def start(self, ask: messages.Generate) -> None:
        rule = self.script.rules.get(str(unpack_tokens(ask.prompt)[0]), self.script)
        request = Running(ask=ask, rule=rule, due_s=time.monotonic() + rule.delay_s)
        self.running[ask.rid] = request
        time.sleep(rule.stuck_s)
        if rule.refuse_status:
            self.end(request, [], finish="abort", status=rule.refuse_status, error=rule.refuse_error)
        elif rule.delay_s == 0.0:
            self.step(request)

    def step(self, request: Running) -> None:
        sampling, prompt = request.ask.sampling, unpack_tokens(request.ask.prompt)
        limit = 1 if self.config.role == "prefill" else sampling.max_new_tokens
        eos = set(sampling.stop_token_ids) | (set() if sampling.ignore_eos else set(self.geometry.eos_token_ids))
        tokens: list[int] = []
        request.steps += 1
        while len(tokens) < request.rule.width and request.made < limit:
            token = prompt[request.made % len(prompt)]
            tokens.append(token)
            request.made += 1
            self.suffer(request)
            if token in eos and request.made >= sampling.min_new_tokens:
                return self.end(request, tokens, finish="stop", matched=token)
        if 0 <= request.rule.fail_after <= request.made:
            return self.end(request, tokens, finish="abort", status=500, error="scripted failure")
        if request.made >= limit:
            return self.end(request, tokens, finish="length")
        request.due_s = time.monotonic() + request.rule.step_s
        self.send(messages.Tokens(rid=request.ask.rid, token_ids=tokens, **self.counts(request)))
        return None

    def suffer(self, request: Running) -> None:
        if 0 <= request.rule.crash_after <= request.made:
            print("scripted crash", file=sys.stderr, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)

    def end(self, request: Running, tokens: list[int], **end: Any) -> None:
        del self.running[request.ask.rid]
        message = messages.Tokens(
            rid=request.ask.rid, token_ids=tokens, timing={"queue": 0.0}, **self.counts(request), **end
        )
        self.send(message)

    def counts(self, request: Running) -> dict[str, int]:
        is_verified = request.rule.width > 1
        return {
            "cached_tokens": min(request.rule.cached, request.ask.num_prompt_tokens),
            "num_verify": request.steps if is_verified else 0,
            "num_accepted_drafts": request.made - request.steps if is_verified else 0,
        }


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("config", type=Path)
    parser.add_argument("--address", required=True)
    options = parser.parse_args()
    config = load(options.config)
    file = Path(config.model.path) / "script.json"
    script = msgspec.json.decode(file.read_bytes(), type=Script) if file.exists() else Script()
    time.sleep(script.load_s)
    if script.exit_code >= 0:
        print(script.last_words, file=sys.stderr)
        return script.exit_code
    return ScriptedWorker(config, script, options.address).run()


if __name__ == "__main__":
    sys.exit(main())
