"""Writes the report of one testbed: a page, and its tables and figures as files beside it.

    python -m reports.build results/cpu --out results/cpu/report.html

Reads the files of sessions and nothing else; works with one row or all. Exit codes: 0 written, 1 the system refused,
2 a mistake of the user.
"""

import argparse
import errno
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from reports.figures.catalog import FIGURES
from reports.figures.figure import Drawn, draw
from reports.material import Material, collect
from reports.page.render import render
from reports.results import Results, load_results
from reports.tables.catalog import TABLES
from workloads.files import write_bytes

Say = Callable[[str], None]


class ReportError(Exception):
    """A mistake of the user; the message says what to do."""


def build(folder: Path, page: Path, say: Say) -> Results:
    """Write `page`, and `tables/` and `figures/` beside it. Raises ReportError, OSError."""
    say(f"reading {folder}")
    results = _load(folder)
    valid = sum(session.outcome == "ok" for session in results.sessions)
    say(f"{len(results.sessions)} sessions, {valid} of them valid, in {len(results.cells)} cells")
    material = collect(results)
    tables = {table.name: table for table in (make(material) for make in TABLES)}
    for table in tables.values():
        write_bytes(page.parent / "tables" / f"{table.name}.csv", table.csv().encode())
    drawn = _draw(material, say)
    for one in drawn:
        _write_figure(page.parent / "figures", one)
    write_bytes(page, render(material, tables, drawn).encode())
    say(f"{len(tables)} tables and {sum(bool(one.svg) for one in drawn)} figures beside {page}")
    return results


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m reports.build", description="Write the report of one testbed.")
    parser.add_argument("results", type=Path, help="folder of a testbed's results, such as results/cpu")
    parser.add_argument("--out", type=Path, help="the page; by default report.html in that folder")
    options = parser.parse_args(arguments)
    page = options.out or options.results / "report.html"
    began = time.monotonic()

    def say(sentence: str) -> None:
        sys.stderr.write(f"report {time.monotonic() - began:5.1f} s: {sentence}\n")
        sys.stderr.flush()

    try:
        build(options.results, page, say)
    except ReportError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    except OSError as error:
        full = error.errno == errno.ENOSPC
        way_out = "free some space and run this again" if full else "choose another place with --out"
        sys.stderr.write(f"error: {error.filename or page} cannot be written ({error.strerror}); {way_out}\n")
        return 1
    return 0


def _load(folder: Path) -> Results:
    if not folder.is_dir():
        raise ReportError(f"{folder} does not exist; name a testbed's folder, such as results/cpu, or run rows first")
    results = load_results(folder.resolve())
    if not results.sessions:
        raise ReportError(f"no session has ended below {folder}; run a row first, for example np1d run decode/baseline")
    return results


def _draw(material: Material, say: Say) -> list[Drawn]:
    drawn = []
    for spec in FIGURES:
        one = draw(spec, material)
        say(f"figure {spec.name}" + (f": {one.absent}" if one.absent else ""))
        drawn.append(one)
    return drawn


def _write_figure(folder: Path, one: Drawn) -> None:
    """Both forms; a figure that is not drawn any more takes its old files away."""
    for ending, content in (("svg", one.svg.encode()), ("png", one.png)):
        file = folder / f"{one.spec.name}.{ending}"
        if content:
            write_bytes(file, content)
        else:
            file.unlink(missing_ok=True)


if __name__ == "__main__":
    sys.exit(main())
