"""Carries out one plan: launch, ready, load, tear down, evidence. Needs no Snakemake.

    python -m workflows.session results/.../plan.json results/.../s0

Whatever happens, an attempt folder keeps logs and records, `status.json` says in one sentence what happened, and no
process is left. A finished result takes its place only as a whole. A plan that was made to be measured in turn with
another is carried out by `workflows.pairing`, which gives `--baton` and `--lock`. Exit codes: 0 done (or, with
`--on-failure record`, recorded), 1 failed, 2 a mistake of the user, 130 interrupted.
"""

import argparse
import contextlib
import dataclasses
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType

from workflows.attempt import Attempt
from workflows.errors import SessionError, WorkflowError
from workflows.plan import Plan, read_plan
from workflows.supervisor import host
from workflows.supervisor.crew import Crew
from workflows.supervisor.preflight import check, refusal
from workflows.supervisor.processes import become_subreaper, die_with_parent

MAX_PORT_TRIES = 3


@dataclasses.dataclass(frozen=True, slots=True)
class Turns:
    """What a session of a pair is given by whoever carries out both."""

    baton: Path
    """Socket over which its client hears when to measure."""
    lock: int
    """The machine's lock, held for the pair and inherited."""


class Interrupt:
    """Turns the first SIGINT or SIGTERM into an exception at a place where things can be put in order."""

    def __init__(self) -> None:
        self.name: str | None = None

    def install(self) -> None:
        """From now on signals are only noted."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._note)

    def check(self) -> None:
        """Raises SessionError when a signal has come."""
        if self.name:
            raise SessionError(
                "interrupted", f"interrupted by {self.name}; the next run measures this session from its beginning"
            )

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self.name = self.name or signal.Signals(number).name


def run_session(
    plan: Plan,
    out: Path,
    *,
    wait_s: float = 7200.0,
    state: Path | None = None,
    log: Path | None = None,
    turns: Turns | None = None,
) -> dict[str, object]:
    """Carry out a plan; returns what went into status.json. Never raises for what happens to the session."""
    interrupt = Interrupt()
    interrupt.install()
    become_subreaper()
    die_with_parent()
    started = time.monotonic()
    try:
        attempt = Attempt(plan, out, log)
    except OSError as error:
        reason = refusal(error)
        sys.stderr.write(f"{plan.cell.name}: FAILED ({reason.kind}): {reason}\n")
        return {"status": "failed", "kind": reason.kind, "reason": str(reason)}
    try:
        folder = state or host.state_folder()
        for line in host.sweep(folder):
            attempt.say(f"ended a process left by an earlier session: {line}")
        check(plan, attempt.folder)
        with _machine(plan, attempt, folder, wait_s, interrupt, turns):
            _with_ports(plan, attempt, folder, interrupt, turns)
        return attempt.succeed(time.monotonic() - started)
    except SessionError as error:
        return attempt.fail(error.kind, str(error), time.monotonic() - started)
    except OSError as error:
        reason = refusal(error)
        return attempt.fail(reason.kind, str(reason), time.monotonic() - started)


@contextlib.contextmanager
def _machine(
    plan: Plan, attempt: Attempt, folder: Path, wait_s: float, interrupt: Interrupt, turns: Turns | None
) -> Iterator[None]:
    """The machine for this session alone, or together with the other session of its pair."""
    if turns:
        if not host.inherited(folder, turns.lock):
            raise SessionError("no_pair", "the lock of this machine is not held for this pair; `np1d gate` holds it")
        yield
        return
    with host.measuring(folder, plan.cell.name, wait_s=wait_s, say=attempt.say, interrupted=interrupt.check):
        yield


def _with_ports(plan: Plan, attempt: Attempt, folder: Path, interrupt: Interrupt, turns: Turns | None) -> None:
    """Run with a block of ports; when another program takes one of them meanwhile, once more with the next block."""
    for skip in range(MAX_PORT_TRIES):
        baton = turns.baton if turns else None
        crew = Crew(plan, attempt, folder, interrupt.check, skip_blocks=skip, baton=baton)
        try:
            crew.run()
            return
        except SessionError as error:
            if error.kind != "port_taken" or skip == MAX_PORT_TRIES - 1:
                raise
            attempt.say(f"{error}; taking other ports")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m workflows.session", description="Carry out one plan.")
    parser.add_argument("plan", type=Path)
    parser.add_argument("out", type=Path, help="folder of the session's results")
    parser.add_argument(
        "--on-failure", choices=("record", "stop"), default="stop", help="record: a failure is a result too"
    )
    parser.add_argument("--log", type=Path, help="where to repeat what is said on standard error")
    parser.add_argument("--wait-s", type=float, default=7200.0, help="how long to wait for another session to end")
    parser.add_argument("--baton", type=Path, help="of a pair: socket over which its client hears when to measure")
    parser.add_argument("--lock", type=int, help="of a pair: number of the machine's lock, inherited open")
    options = parser.parse_args(arguments)
    try:
        plan = read_plan(options.plan)
        turns = _turns(plan, options)
    except WorkflowError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    status = run_session(plan, options.out, wait_s=options.wait_s, log=options.log, turns=turns)
    if status["status"] == "ok":
        return 0
    if status["kind"] == "interrupted":
        return 130
    return 0 if options.on_failure == "record" and (options.out / "status.json").exists() else 1


def _turns(plan: Plan, options: argparse.Namespace) -> Turns | None:
    """What a pair's plan needs and no other may have. Raises WorkflowError."""
    if options.baton and options.lock is not None and plan.in_turn:
        return Turns(options.baton, options.lock)
    if plan.in_turn:
        raise WorkflowError("this plan is measured in turn with another engine: `np1d gate --base COMMIT` runs both")
    if options.baton or options.lock is not None:
        raise WorkflowError("--baton and --lock are for plans of a pair, and this plan is measured alone")
    return None


if __name__ == "__main__":
    sys.exit(main())
