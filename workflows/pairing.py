"""Carries out a pair: two plans of one cell, both engines up at once, their load clients taking turns.

Each side is an ordinary `workflows.session` of its own checkout, with its own servers, supervisor, records and
verdict. The pair holds the machine for both, and ends for both when one of them ends early. Knows nothing of gates.
"""

import dataclasses
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from workflows.errors import SessionError, WorkflowError
from workflows.plan import Plan, difference
from workflows.referee import Referee
from workflows.supervisor import host

POLL_S = 0.1
LINE_PERIOD_S = 10.0


@dataclasses.dataclass(frozen=True, slots=True)
class Half:
    """One side of a pair: its plan, the checkout that runs it, and the folder of its result."""

    plan: Plan
    checkout: Path
    folder: Path


def run_pair(halves: Mapping[str, Half], *, max_pass_s: float, wait_s: float = 7200.0) -> None:
    """Measure both, in the order given (A B B A ...).

    What happens to a session stands in its folder. Raises WorkflowError when there is no pair to measure,
    KeyboardInterrupt when it was interrupted.
    """
    passes = _passes(halves)
    name = next(iter(halves.values())).plan.cell.name
    state = host.state_folder()
    line = TurnLine(name)
    try:
        with (
            host.measuring(state, f"pair {name}", wait_s=wait_s, say=line.say, interrupted=lambda: None) as lock,
            Referee(tuple(halves), passes, max_pass_s=max_pass_s, folder=_sockets(state), show=line.turn) as referee,
        ):
            _watch(_start(halves, referee, lock), referee, line)
    except SessionError as error:
        raise WorkflowError(str(error)) from None


def _sockets(state: Path) -> Path:
    """Where a referee's sockets lie; those of a gate that was killed are gone. For whoever holds the machine."""
    folder = state / "pairs"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return folder


def different_load(halves: Mapping[str, Half]) -> str:
    """Why the two sides would not be asked the same; empty when they are."""
    loads = [{**half.plan.client.workload, "identity": None} for half in halves.values()]
    found = difference(*loads)
    return f"the two commits plan different loads: {'; '.join(found[:3])}" if found else ""


def _passes(halves: Mapping[str, Half]) -> int:
    first, second = (int(half.plan.client.workload["passes"]) for half in halves.values())
    if first != second:
        raise WorkflowError(f"the two sides of a pair have {first} and {second} passes; give both as many")
    return first


def _start(halves: Mapping[str, Half], referee: Referee, lock: int) -> "dict[str, subprocess.Popen[bytes]]":
    """Both sessions at the same moment; each inherits the machine's lock."""
    return {
        side: subprocess.Popen(
            [sys.executable, "-m", "workflows.session", str(half.folder / "plan.json"), str(half.folder),
             "--on-failure", "record", "--baton", str(referee.path(side)), "--lock", str(lock)],
            cwd=half.checkout, pass_fds=[lock],
        )
        for side, half in halves.items()
    }  # fmt: skip


def _watch(sessions: "Mapping[str, subprocess.Popen[bytes]]", referee: Referee, line: "TurnLine") -> None:
    """Until both sessions have ended: turns are handed on, and nobody waits for a side that has gone."""
    ended: list[str] = []
    try:
        while len(ended) < len(sessions):
            referee.step(POLL_S)
            for side, session in sessions.items():
                if side not in ended and session.poll() is not None:
                    ended.append(side)
                    referee.stop(f"the session of the {side} ended before its time")
            if referee.stopped:
                line.end(referee.stopped)
    except KeyboardInterrupt:
        for session in sessions.values():
            session.wait()  # interrupted too, and ends its servers
        raise
    codes: Sequence[int] = [session.returncode for session in sessions.values()]
    if 130 in codes:
        raise KeyboardInterrupt
    if any(codes):
        raise WorkflowError(f"the sessions of a pair ended with codes {codes}; their words are above")


class TurnLine:
    """Whose turn it is, for the person who waits: one line on a terminal, one every few seconds elsewhere."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._is_terminal = sys.stderr.isatty()
        self._next_s = 0.0
        self._has_ended = False

    def turn(self, number: int, turns: int, side: str) -> None:
        """A turn begins."""
        is_last = number == turns
        if not self._is_terminal and time.monotonic() < self._next_s and not is_last:
            return
        self._next_s = time.monotonic() + LINE_PERIOD_S
        start, end = ("\r\x1b[2K", "\n" if is_last else "") if self._is_terminal else ("", "\n")
        sys.stderr.write(f"{start}  {self._name}: turn {number} of {turns}, {side}{end}")
        sys.stderr.flush()

    def say(self, sentence: str) -> None:
        """A line that stays."""
        sys.stderr.write(f"{self._name}: {sentence}\n")
        sys.stderr.flush()

    def end(self, sentence: str) -> None:
        """The pair ended early; said once."""
        if not self._has_ended:
            self._has_ended = True
            self.say(f"the pair ends: {sentence}")
