"""What a run would do, cell by cell, from the jobs that Snakemake's dry run names.

Snakemake decides what is run; this says it in a user's words, with the reason and the seconds that such sessions took.
"""

import re
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

from workflows.overview import outcomes_of_cell
from workflows.standing import attempts
from workloads.files import read_json

_JOB = re.compile(r"^(?:local)?rule (\w+):\n((?:    .*\n)+)", re.MULTILINE)
_FIELD = re.compile(r"^    (output|reason): (.*)$", re.MULTILINE)
_STATS = re.compile(r"^Job stats:\n(.*?)\n\n", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Job:
    """One job of Snakemake's."""

    rule: str
    outputs: tuple[str, ...]
    reason: str


def jobs(said: str) -> list[Job]:
    """The jobs that a dry run's text names: of each rule as many as its own table counts."""
    found = []
    for rule, body in _JOB.findall(said):
        fields = dict(_FIELD.findall(body))
        found.append(Job(rule, tuple(fields.get("output", "").split(", ")), fields.get("reason", "")))
    stats = _STATS.search(said)
    counts = {rule: int(count) for rule, count in re.findall(r"^(\w+) +(\d+)$", stats.group(1) if stats else "", re.M)}
    counts.pop("total", None)
    assert counts == Counter(job.rule for job in found), f"{counts}, and these jobs: {found}"
    return found


class Preview:
    """The sessions that would run, of all that are selected, and what is done beside them."""

    def __init__(self, selected: Sequence[str], planned: Sequence[Job], results: Path, whys: Mapping[str, str]) -> None:
        """`selected` are folders of sessions below `results`; `whys` says of some of them why they run."""
        self._selected = selected
        self._results = results
        self._counts = Counter(job.rule for job in planned)
        snakemakes = {
            job.outputs[0].removeprefix("results/").removesuffix("/status.json"): job.reason
            for job in planned
            if job.rule == "session"
        }
        self.sessions = {
            folder: whys.get(folder) or _why(results / folder, snakemakes[folder])
            for folder in selected
            if folder in snakemakes
        }
        """Folder of each session that would run -> why, in the order of running."""
        assert len(self.sessions) == len(snakemakes), "Snakemake plans a session that is not selected"
        self._seconds = {folder: _seconds_of((results / folder).parent) for folder in self.sessions}

    def table(self) -> Table:
        """A line for each cell and reason."""
        table = Table(box=None, pad_edge=False)
        for name in ("cell", "sessions", "which", "why", "about, s"):
            table.add_column(name, overflow="fold", no_wrap=name != "why")
        for folders, why in grouped(self.sessions):
            seconds = self._seconds[folders[0]]
            known = "not known" if seconds is None else f"{seconds * len(folders):.0f}"
            table.add_row(cell_words(folders[0]), str(len(folders)), session_words(folders), why, known)
        return table

    def lines(self) -> Iterator[str]:
        """Sentences on the whole."""
        num, total = len(self.sessions), len(self._selected)
        if num:
            yield f"{num} of {total} selected sessions would run, {self._time()}"
        else:
            ended = "the selected session has ended" if total == 1 else f"all {total} selected sessions have ended"
            yield f"nothing to measure: {ended}"
        if bad := self._num_bad():
            yield (
                f"{bad} of those that would not run {'is' if bad == 1 else 'are'} no valid result; np1d rerun --failed "
                "--yes lets the next run measure again"
            )
        if self._counts["checkpoint"]:
            yield f"{_of(self._counts['checkpoint'], 'checkpoint')} would be written first"
        if (again := self._counts["metrics"] - num) > 0:
            yield f"metrics of {_of(again, 'session')} would be computed from the records, without measuring"
        if self._counts["pages"]:
            yield "the report would be written"

    def _time(self) -> str:
        known = [seconds for seconds in self._seconds.values() if seconds is not None]
        if not known:
            return "for how long is not known: no such session has run here"
        part = "" if len(known) == len(self._seconds) else f" for the {len(known)} whose cell has run before"
        return f"about {sum(known):.0f} s{part}"

    def _num_bad(self) -> int:
        stay = {self._results / folder for folder in self._selected if folder not in self.sessions}
        cells = {folder.parent for folder in stay}
        return sum(one.folder in stay and not one.is_good for cell in cells for one in outcomes_of_cell(cell))


def grouped(whys: Mapping[str, str]) -> Iterator[tuple[list[str], str]]:
    """Folders of sessions of one cell that share a reason, and the reason; cells in the order of their names."""
    together: dict[tuple[str, str], list[str]] = {}
    for folder, why in sorted(whys.items(), key=lambda item: (_cell(item[0]), _number(item[0]))):
        together.setdefault((_cell(folder), why), []).append(folder)
    for (_, why), folders in together.items():
        yield folders, why


def cell_words(folder: str) -> str:
    """`suite/row workload` of a session's folder."""
    _, suite, row, workload, _ = folder.split("/")
    return f"{suite}/{row} {workload}"


def session_words(folders: Sequence[str]) -> str:
    """`s0 s2-s4` of the folders of one cell's sessions, in order."""
    runs: list[list[int]] = []
    for number in map(_number, folders):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return " ".join(f"s{run[0]}" if len(run) == 1 else f"s{run[0]}-s{run[-1]}" for run in runs)


def _why(session: Path, snakemakes: str) -> str:
    """Why a session is run of which nobody has said more."""
    if (session / "status.json").exists():
        return f"Snakemake: {snakemakes.partition(':')[0]}"
    tries = attempts(session)
    if not tries:
        return "new"
    try:
        last = read_json(tries[-1] / "status.json")
    except (OSError, ValueError):
        return "its last attempt has not ended"
    if last["status"] == "ok":
        return "its result was taken away to be measured again"
    return "its last attempt was interrupted" if last["kind"] == "interrupted" else f"failed before: {last['kind']}"


def _seconds_of(cell: Path) -> float | None:
    """How long a session of the cell took, from attempts that went well; None where there is none."""
    took = []
    for file in cell.glob("s*/attempts/*/status.json"):
        try:
            status = read_json(file)
        except (OSError, ValueError):
            continue
        if status.get("status") == "ok" and status.get("duration_s"):
            took.append(float(status["duration_s"]))
    return statistics.median(took) if took else None


def _cell(folder: str) -> str:
    return folder.rpartition("/")[0]


def _number(folder: str) -> int:
    return int(folder.rpartition("/s")[2])


def _of(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count != 1)}"
