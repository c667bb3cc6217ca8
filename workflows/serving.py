"""`np1d serve`: the servers of a row, up until Ctrl-C, for anything that speaks their API."""

import time
from pathlib import Path

from workflows.attempt import Attempt
from workflows.errors import SessionError
from workflows.plan import Plan
from workflows.session import Interrupt
from workflows.supervisor import host
from workflows.supervisor.crew import Crew
from workflows.supervisor.preflight import check
from workflows.supervisor.processes import become_subreaper, die_with_parent


def serve(plan: Plan, folder: Path) -> int:
    """Start the plan's servers and wait; returns the exit code. Raises SessionError when they do not come up or die."""
    interrupt = Interrupt()
    interrupt.install()
    become_subreaper()
    die_with_parent()
    attempt = Attempt(plan, folder)
    state = host.state_folder()
    host.sweep(state)
    check(plan, attempt.folder)
    with host.measuring(state, f"serve {plan.cell.name}", wait_s=0.0, say=attempt.say, interrupted=interrupt.check):
        try:
            Crew(plan, attempt, state, interrupt.check).serve(_forever)
        except SessionError as error:
            if error.kind != "interrupted":
                raise
    attempt.say("stopped; nothing is left running")
    return 0


def _forever() -> bool:
    time.sleep(0.1)
    return True
