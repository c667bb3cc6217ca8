"""Carries out one plan: launch, ready, load, tear down, evidence. Needs no Snakemake.

    python -m workflows.session results/.../plan.json results/.../s0

Whatever happens, an attempt folder keeps logs and records, `status.json` says in one sentence what happened, and no
process is left. A finished result takes its place only as a whole. Exit codes: 0 done (or, with `--on-failure record`,
recorded), 1 failed, 2 a mistake of the user, 130 interrupted.
"""

import argparse
import signal
import sys
import time
from collections.abc import Sequence
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
    plan: Plan, out: Path, *, wait_s: float = 7200.0, state: Path | None = None, log: Path | None = None
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
        with host.measuring(folder, plan.cell.name, wait_s=wait_s, say=attempt.say, interrupted=interrupt.check):
            _with_ports(plan, attempt, folder, interrupt)
        return attempt.succeed(time.monotonic() - started)
    except SessionError as error:
        return attempt.fail(error.kind, str(error), time.monotonic() - started)
    except OSError as error:
        reason = refusal(error)
        return attempt.fail(reason.kind, str(reason), time.monotonic() - started)


def _with_ports(plan: Plan, attempt: Attempt, folder: Path, interrupt: Interrupt) -> None:
    """Run with a block of ports; when another program takes one of them meanwhile, once more with the next block."""
    for skip in range(MAX_PORT_TRIES):
        crew = Crew(plan, attempt, folder, interrupt.check, skip_blocks=skip)
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
    options = parser.parse_args(arguments)
    try:
        plan = read_plan(options.plan)
    except WorkflowError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    status = run_session(plan, options.out, wait_s=options.wait_s, log=options.log)
    if status["status"] == "ok":
        return 0
    if status["kind"] == "interrupted":
        return 130
    return 0 if options.on_failure == "record" and (options.out / "status.json").exists() else 1


if __name__ == "__main__":
    sys.exit(main())
