"""The folder of one attempt, and how it becomes a result.

An attempt writes only into a folder of its own and keeps all of it. What it has to say goes to the log and to standard
error. A success links its files into the result's folder, `status.json` last; a failure takes their places and says
why, until `workflows.standing` puts an earlier valid result back; an interruption leaves an earlier result alone.
"""

import contextlib
import sys
import time
from pathlib import Path
from typing import Any

from workflows import provenance
from workflows.identity import measured_code
from workflows.plan import Plan
from workflows.standing import RESULTS, place
from workloads.files import write_json

STATUS_SCHEMA = "status/1"
KEPT_OF_FAILURES = ("plan.json", "provenance.json")


class Attempt:
    """One try at a plan."""

    def __init__(self, plan: Plan, out: Path, log: Path | None = None) -> None:
        self.plan = plan
        self.out = out
        self.folder = _next_folder(out / "attempts")
        self.provenance: dict[str, Any] = {"commands": {}, "ports": {}, "timings_s": {}, "exit_codes": {}, "killed": []}
        self._started_unix_s = time.time()
        self._logs = [self.folder / "session.log", *([log] if log else [])]
        if log:
            log.parent.mkdir(parents=True, exist_ok=True)
            log.write_text("")
        write_json(self.folder / "plan.json", plan.to_json())

    def say(self, sentence: str) -> None:
        """A line for the person who waits, kept in the log."""
        line = f"{self.plan.title}: {sentence}"
        for path in self._logs:
            with contextlib.suppress(OSError), path.open("a", encoding="utf-8") as log:  # a full disk silences no one
                log.write(f"{time.strftime('%H:%M:%S')} {sentence}\n")
        sys.stderr.write(line + "\n")
        sys.stderr.flush()

    def succeed(self, duration_s: float) -> dict[str, Any]:
        """Put the results in place."""
        self._write_provenance()
        (self.out / "status.json").unlink(missing_ok=True)
        for name in RESULTS:
            place(self.folder / name, self.out / name)
        status = self._status("ok", None, "", duration_s)
        write_json(self.folder / "status.json", status)
        write_json(self.out / "status.json", status)
        self.say(f"done in {duration_s:.0f} s")
        return status

    def fail(self, kind: str, reason: str, duration_s: float) -> dict[str, Any]:
        """Say why there is no result."""
        status = self._status("failed", kind, reason, duration_s)
        try:
            self._write_provenance()
            write_json(self.folder / "status.json", status)
            if kind != "interrupted":
                write_json(self.out / "status.json", status)  # first: on a full disk all stays as it was
                for name in RESULTS:
                    kept = self.folder / name if name in KEPT_OF_FAILURES else None
                    place(kept, self.out / name)
        except OSError as error:
            self.say(f"status.json could not be written: {error.strerror}")
        self.say(reason if kind == "interrupted" else f"FAILED ({kind}): {reason}")
        return status

    def last_words(self, name: str, lines: int = 12) -> list[str]:
        """The end of a process's log."""
        try:
            with (self.folder / f"{name}.log").open("rb") as log:
                log.seek(0, 2)
                log.seek(max(0, log.tell() - 16384))
                return [line[:400] for line in log.read().decode("utf-8", "replace").splitlines() if line.strip()][
                    -lines:
                ]
        except OSError:
            return []

    def _status(self, status: str, kind: str | None, reason: str, duration_s: float) -> dict[str, Any]:
        return {
            "schema": STATUS_SCHEMA,
            "status": status,
            "kind": kind,
            "reason": reason,
            "log_tail": {path.stem: self.last_words(path.stem) for path in sorted(self.folder.glob("*.log"))}
            if status != "ok"
            else {},
            "attempt": self.folder.name,
            "cell": self.plan.cell.model_dump(),
            "key": self.plan.key,
            "measured_code": measured_code(self.plan.cell.engine, str(self.plan.labels.get("platform", "any"))),
            "started_unix_s": self._started_unix_s,
            "duration_s": duration_s,
        }

    def _write_provenance(self) -> None:
        body = {"schema": "provenance/1", **provenance.facts(), **self.provenance, "key": self.plan.key}
        write_json(self.folder / "provenance.json", body)


def _next_folder(parent: Path) -> Path:
    """A new, empty folder, whoever else is making one."""
    parent.mkdir(parents=True, exist_ok=True)
    number = 1 + max((int(path.name) for path in parent.iterdir() if path.name.isdigit()), default=0)
    while True:
        folder = parent / f"{number:04d}"
        try:
            folder.mkdir()
            return folder
        except FileExistsError:
            number += 1
