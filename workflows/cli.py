"""The command `np1d`: measure rows of the published tables, look at what came out, and keep it in order."""

import contextlib
import errno
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from workflows import doctor as doctoring
from workflows import housekeeping
from workflows.catalog import load_catalog
from workflows.errors import WorkflowError
from workflows.overview import outcomes, outcomes_of_cell, result_table, row_table
from workflows.resolution import resolve
from workflows.runner import working_alone

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "results"
ABOUT = """Reproduce a published serving result, row by row.

\b
np1d run decode/fp8_kv      measure one row on the default testbed and update the report
np1d list                   what there is to run here
np1d plan decode/fp8_kv     everything a run would do, as data or as scripts
"""


app = typer.Typer(
    help=ABOUT, no_args_is_help=True, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False
)
tune = typer.Typer(help="Search for the fastest kernel settings of this machine.", no_args_is_help=True)
app.add_typer(tune, name="tune")
WIDE = None if sys.stdout.isatty() else 160
PASSED_ON = {"ignore_unknown_options": True}
"""Options of an engine's verb are that verb's own."""
out = Console(width=WIDE)
err = Console(stderr=True, width=WIDE)

Testbed = Annotated[str, typer.Option(help="Where to run: np1d list --testbeds shows them.")]
Engine = Annotated[str, typer.Option(help="stack (ours), sglang (the published one), or the testbed's default.")]
Rows = Annotated[list[str] | None, typer.Argument(help="Rows (decode/fp8_kv) or whole suites (decode).")]


@app.command()
def doctor(
    testbed: Testbed = "cpu",
    measure: Annotated[bool, typer.Option(help="Also measure what the load client can drive at most.")] = False,
) -> None:
    """Check whether this machine can run a testbed, and say what is missing."""
    bad = 0
    for finding in doctoring.examine(load_catalog(), testbed):
        mark = {True: ("ok", "green"), False: ("BAD", "red"), None: ("--", "dim")}[finding.is_ok]
        hint = f"; {finding.way_out}" if finding.is_ok is False and finding.way_out else ""
        out.print(Text(f"{mark[0]:>4} ", mark[1]) + Text(f"{finding.what:14} {finding.found}{hint}"))
        bad += finding.is_ok is False
    if measure:
        for line in doctoring.client_ceiling():
            out.print(line, highlight=False)
    if bad:
        raise WorkflowError(f"{bad} finding{'s' if bad > 1 else ''} above must be mended before a run on {testbed}")


@app.command("list")
def list_rows(
    rows: Rows = None,
    testbed: Annotated[
        str, typer.Option(help="Where to run; empty: cpu, and with --results all. --testbeds shows them.")
    ] = "",
    engine: Engine = "default",
    results: Annotated[bool, typer.Option("--results", help="Show what has been measured instead.")] = False,
    testbeds: Annotated[bool, typer.Option("--testbeds", help="Show the testbeds instead.")] = False,
    generated: Annotated[bool, typer.Option("--generated", help="Show leave-one-out variants too.")] = False,
) -> None:
    """Show the rows, and whether they run on a testbed; or results, or testbeds."""
    catalog = load_catalog()
    if testbeds:
        _refuse_unused("--testbeds shows all of them", {"rows": rows, "--results": results, "--generated": generated})
        table = Table(box=None, pad_edge=False)
        for name in ("testbed", "engine", "what it is"):
            table.add_column(name)
        for name, body in catalog.testbeds.items():
            table.add_row(name, body.engine, body.title)
        out.print(table)
    elif results:
        names = {entry.name for entry in catalog.select(rows)} if rows else None
        found = [one for one in outcomes(RESULTS) if names is None or "/".join(one.folder.parts[-4:-2]) in names]
        if testbed:
            found = housekeeping.of_testbed(found, testbed, catalog)
        what = f"no session{' of these rows' if names else ''}{f' on {testbed}' if testbed else ''} has ended yet"
        out.print(result_table(found, catalog) if found else f"{what}; np1d run measures")
    else:
        testbed = testbed or "cpu"
        entries = catalog.select(rows or catalog.suites)
        if generated:
            entries += [entry for entry in catalog.rows.values() if entry.generated and entry not in entries]
        out.print(row_table((resolve(catalog, entry, testbed, engine) for entry in entries), testbed))


@app.command()
def plan(
    row: Annotated[str, typer.Argument(help="A row, such as decode/fp8_kv, or on ascend_a3 a scenario.")],
    workload: Annotated[str, typer.Option(help="One of the row's workloads; empty: the first (--memory: all).")] = "",
    testbed: Testbed = "cpu",
    engine: Engine = "default",
    session: Annotated[int, typer.Option(min=0, help="Number of the session; its prompts depend on it.")] = 0,
    commands: Annotated[bool, typer.Option("--commands", help="Print one runnable script for each host.")] = False,
    placement: Annotated[
        str | None, typer.Option(help="With --commands: hosts (ssh by hand; so without it) or srun.")
    ] = None,
    hosts: Annotated[
        list[str] | None,
        typer.Option(help="With --commands: a host's address, once for each in order, or a file of them."),
    ] = None,
    memory: Annotated[
        bool, typer.Option("--memory", help="Print what fits in memory instead; ROW may be a suite here.")
    ] = False,
    out_folder: Annotated[Path | None, typer.Option("--out", help="Write files here instead of printing.")] = None,
) -> None:
    """Print everything that one session would do: as plan.json, or as scripts for its hosts."""
    from workflows.scripts import emit, render

    if memory:
        from workflows.memory_report import Question, print_memory

        _refuse_unused(
            "--memory prints what fits", {"--commands": commands, "--out": out_folder, "--hosts": hosts,
                                          "--session": session, "--placement": placement}
        )  # fmt: skip
        print_memory(load_catalog(), Question(row, workload, testbed, engine), out)
        return
    if commands:
        _refuse_unused("--commands prints launches without a load", {"--session": session})
        emit(render(row, workload, testbed, engine, hosts or [], placement or "hosts"), out_folder, out)
        return
    _refuse_unused("a plan is for one machine, where --commands is for hosts",
                   {"--hosts": hosts, "--placement": placement})  # fmt: skip
    from workflows.planner import plan_session
    from workloads.files import write_json

    catalog = load_catalog()
    chosen = workload or next(iter(catalog.row(row).workloads), "")
    made = plan_session(row, chosen, testbed_id=testbed, session=session, engine=engine)
    if out_folder:
        write_json(out_folder / "plan.json", made.to_json())
        out.print(f"{out_folder / 'plan.json'}; run it with: python -m workflows.session PLAN FOLDER")
    else:
        out.print_json(data=made.to_json())


def _refuse_unused(what: str, given: dict[str, object]) -> None:
    if unused := [name for name, value in given.items() if value]:
        raise WorkflowError(f"{what} and uses no {' or '.join(unused)}; give one or the other")


@app.command()
def run(
    rows: Rows = None,
    workload: Annotated[
        list[str] | None, typer.Option(help="Workloads in place of the rows' own, such as sp99_9_tuned.")
    ] = None,
    testbed: Testbed = "cpu",
    engine: Engine = "default",
    sessions: Annotated[int, typer.Option(min=1, help="Sessions of each cell; only missing ones are run.")] = 1,
    seed: Annotated[int, typer.Option(help="Seed of the order of sessions.")] = 0,
    demo: Annotated[bool, typer.Option("--demo", help="The rows that a first look shows.")] = False,
    gsm8k: Annotated[Path | None, typer.Option(help="Your copy of GSM8K's test.jsonl, for accuracy rows.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Measure again what is measured already.")] = False,
    stop: Annotated[bool, typer.Option("--stop-on-failure", help="End at the first failed session.")] = False,
    report: Annotated[bool, typer.Option(help="Build the report afterwards.")] = True,
    profile: Annotated[str, typer.Option(help="Snakemake profile, such as workflows/profiles/slurm.")] = "",
) -> None:
    """Measure rows, then put them beside the published values. Rows that are measured already are left alone."""
    from workflows.campaign import Campaign

    if demo and rows:
        raise WorkflowError("give either rows or --demo")
    if not demo and not rows:
        raise WorkflowError("name rows or suites (np1d list shows them), or give --demo for a first look")
    if demo and testbed not in (demos := load_catalog().config.demo):
        raise WorkflowError(f"{testbed} has no demo, and {', '.join(demos)} has; name rows or suites instead")
    if gsm8k:
        data("gsm8k", gsm8k)
    campaign = Campaign(
        rows=tuple(rows or ()),
        workloads=tuple(workload or ()),
        testbed=testbed,
        engine=engine,
        sessions=sessions,
        seed=seed,
        stop=stop,
        profile=profile,
    )
    raise typer.Exit(campaign.run(out, err, force=force, is_dry=dry_run, with_report=report))


@app.command()
def data(
    name: Annotated[str, typer.Argument(help="A file of workflows/config/data.yaml.")] = "gsm8k",
    source: Annotated[
        Path | None, typer.Option("--from", help="A copy that you have; otherwise it is downloaded.")
    ] = None,
) -> None:
    """Bring a file that a workload reads: downloaded, or from a copy; its checksum decides."""
    from workflows.data import bring

    out.print(bring(load_catalog(), name, source), highlight=False, soft_wrap=True)


@app.command()
def serve(
    row: Annotated[str, typer.Argument(help="Whose servers to start.")] = "decode/baseline",
    testbed: Testbed = "cpu",
) -> None:
    """Start the servers and the router of a row and keep them up until Ctrl-C."""
    from workflows.planner import plan_session
    from workflows.serving import serve as keep_serving

    made = plan_session(row, next(iter(load_catalog().row(row).workloads)), testbed_id=testbed)
    folder = RESULTS / "serve" / row.replace("/", "_")
    raise typer.Exit(keep_serving(made, folder))


@app.command()
def why(
    cell: Annotated[str, typer.Argument(help="suite/row, suite/row/workload, that with /s1, or a session's folder.")],
    testbed: Testbed = "cpu",
) -> None:
    """Say why a session would be measured again, setting by setting."""
    catalog = load_catalog()
    folder = housekeeping.session_folder(cell, testbed, RESULTS, catalog)
    reasons = housekeeping.why(folder, catalog)
    for reason in reasons:
        out.print(reason, highlight=False)
    if not reasons:
        out.print("nothing has changed: it would not be measured again")


@app.command()
def rerun(
    failed: Annotated[bool, typer.Option("--failed", help="Every session that is no valid result.")] = False,
    testbed: Annotated[str, typer.Option(help="Only of this testbed; empty: all.")] = "",
    yes: Annotated[bool, typer.Option("--yes", help="Do it; otherwise only say what would be done.")] = False,
) -> None:
    """Take away the verdicts of failed sessions, so that the next run measures them again. Attempts are kept."""
    if not failed:
        raise WorkflowError("say what to run again: np1d rerun --failed")
    catalog = load_catalog()
    with working_alone() if yes else contextlib.nullcontext():
        found = housekeeping.failed(RESULTS)
        if testbed:
            found = housekeeping.of_testbed(found, testbed, catalog)
        gone = set(housekeeping.orphans(RESULTS, catalog))
        if orphans := [outcome for outcome in found if outcome.folder in gone]:
            found = [outcome for outcome in found if outcome not in orphans]
            out.print(f"{_sessions(len(orphans))} failed in rows that are gone; np1d prune lists them")
        if not found:
            out.print(
                "there is no failed session that a run would measure" if orphans else "there is no failed session"
            )
            return
        out.print(result_table(found, catalog))
        if yes:
            housekeeping.forget(found)
    done = f"{_sessions(len(found))} will be measured by the next np1d run that selects them"
    out.print(done if yes else "np1d rerun --failed --yes does it")


@app.command()
def prune(yes: Annotated[bool, typer.Option("--yes", help="Delete them.")] = False) -> None:
    """List results of rows that are no longer in the catalogue, and delete them with --yes."""
    with working_alone() if yes else contextlib.nullcontext():
        folders = list(housekeeping.orphans(RESULTS, load_catalog()))
        for folder in folders:
            out.print(str(folder.relative_to(ROOT)), highlight=False)
        if yes:
            housekeeping.remove(folders, RESULTS)
    if yes:
        out.print(f"{len(folders)} deleted")
    else:
        out.print("np1d prune --yes deletes them" if folders else "nothing to prune")


@app.command("import")
def import_results(
    sources: Annotated[list[Path], typer.Argument(help="Folders with sessions of another machine.")],
) -> None:
    """Take in sessions that ran elsewhere; each gets the next free number of its cell, and its metrics are computed."""
    taken: list[Path] = []
    read = [housekeeping.read_sessions(source) for source in sources]
    for folder in (folder for source in sources for folder in housekeeping.unended(source)):
        words = "it did not end, or its archive was cut"
        err.print(f"{folder} is left out: it has a plan.json and no status.json ({words})", soft_wrap=True)
    with working_alone():
        for sessions in read:
            for folder in housekeeping.copy_in(sessions, RESULTS):
                out.print(str(folder.relative_to(ROOT)), highlight=False)
                housekeeping.measure_missing(folder)
                taken.append(folder)
    testbeds = sorted({folder.relative_to(RESULTS).parts[0] for folder in taken})
    commands = " and ".join(f"np1d report --testbed {name.replace('_sglang', ' --engine sglang')}" for name in testbeds)
    for one in (one for cell in dict.fromkeys(folder.parent for folder in taken) for one in outcomes_of_cell(cell)):
        if one.superseded and one.folder in taken:
            out.print(f"{one.folder.relative_to(ROOT)} is {one.superseded}", highlight=False, soft_wrap=True)
    said = f"{_sessions(len(taken))} taken in; {commands} shows them" if taken else "all of them are here already"
    out.print(said, soft_wrap=True)


def _sessions(count: int) -> str:
    return f"{count} session{'s' * (count != 1)}"


@app.command()
def report(testbed: Testbed = "cpu", engine: Engine = "default") -> None:
    """Write the report of what has been measured or taken in, without measuring anything."""
    from workflows.row_list import write_rows

    catalog = load_catalog()
    folder = RESULTS / catalog.results_folder(testbed, engine)
    if not folder.is_dir():
        other = f" with engine {engine}" if engine != "default" else ""
        raise WorkflowError(f"nothing was measured on {testbed}{other} yet; np1d run measures, np1d import takes in")
    housekeeping.measure_missing(folder)
    write_rows(catalog, testbed, engine, folder / "rows.json")
    code = subprocess.run([sys.executable, "-m", "reports.build", str(folder)], cwd=ROOT, check=False).returncode
    if code == 0:
        out.print(str((folder / "report.html").relative_to(ROOT)), highlight=False, soft_wrap=True)
    raise typer.Exit(code)


@app.command()
def gate(
    rows: Rows = None,
    testbed: Testbed = "cpu",
    base: Annotated[str, typer.Option(help="Commit to measure in turn with this one, on this machine.")] = "",
    store: Annotated[Path | None, typer.Option(help="Folder of earlier sessions to compare with.")] = None,
    existing: Annotated[
        bool, typer.Option("--existing", help="Judge the sessions that are there; measure none.")
    ] = False,
    update: Annotated[
        bool, typer.Option("--update", help="Add this commit's sessions to the store unless it fails.")
    ] = False,
    out_file: Annotated[Path, typer.Option("--out", help="JSON file; .md and .xml go beside it.")] = RESULTS
    / "gate.json",
) -> None:
    """Judge whether a change costs throughput. Exit code: 0 PASS, 1 FAIL, 3 INVALID, 4 INCONCLUSIVE; 2 for a mistake
    and 70 for a fault of np1d, which are no verdicts."""
    from workflows.gate_command import GateRequest
    from workflows.gate_command import gate as judge

    request = GateRequest(
        rows=tuple(rows or ()), testbed=testbed, base=base, store=store, existing=existing, update=update, out=out_file
    )
    raise typer.Exit(judge(request, _say))


@app.command()
def calibrate(
    rows: Rows = None,
    testbed: Testbed = "cpu",
    sessions: Annotated[int, typer.Option(min=8, help="Sessions of each cell, or pairs of sessions.")] = 8,
    for_store: Annotated[
        bool, typer.Option("--for-store", help="Sessions alone, as a gate against a store compares them; no pairs.")
    ] = False,
) -> None:
    """Measure this machine's noise, and refuse gate thresholds that it cannot uphold."""
    from workflows.gate_command import calibrate as measure_noise

    measure_noise(tuple(rows or ()), testbed, sessions, _say, for_store=for_store)


def _say(sentence: str) -> None:
    out.print(sentence, highlight=False, markup=False, soft_wrap=True)


@tune.command("moe", context_settings=PASSED_ON, add_help_option=False)
def tune_moe(
    arguments: Annotated[list[str] | None, typer.Argument(help="Passed on to the tuner.")] = None,
) -> None:
    """Search tiles of the expert GEMMs on recorded routes, and write the table that rows name."""
    command = [sys.executable, "-m", "stack.tune_moe", *(arguments or [])]
    raise typer.Exit(subprocess.run(command, cwd=ROOT, check=False).returncode)


@app.command()
def profile(
    row: Annotated[str, typer.Argument(help="A row that serves a load, such as decode/fp8_kv.")] = "decode/baseline",
    workload: Annotated[str, typer.Option(help="One of the row's workloads; empty: the first.")] = "",
    testbed: Testbed = "cpu",
    source: Annotated[
        Path | None,
        typer.Option("--from", help="Take in what stack.engine.bench --profile-steps printed elsewhere; run nothing."),
    ] = None,
) -> None:
    """Show where the time of a prefill chunk and of a decode step goes, op by op; the report shows it too."""
    from workflows.profiling import profile_row, take_in_trace

    if source:
        kept = take_in_trace(row, workload, testbed, RESULTS, source)
        out.print(
            f"{kept.relative_to(ROOT)}; np1d report --testbed {testbed} shows it", highlight=False, soft_wrap=True
        )
        return
    code, path = profile_row(row, workload, testbed, RESULTS)
    if code == 0:
        out.print(
            f"{path.relative_to(ROOT)}; np1d report --testbed {testbed} shows it", highlight=False, soft_wrap=True
        )
    raise typer.Exit(code)


@app.command()
def routes(
    source: Annotated[Path, typer.Argument(help="Routes that kernels.moe_routes recorded.")],
    testbed: Testbed = "cpu",
) -> None:
    """Count which share of the experts a step touches; the report shows it beside every decode row of the testbed."""
    from workflows.profiling import take_in_routes

    kept = take_in_routes(testbed, RESULTS, source)
    out.print(f"{kept.relative_to(ROOT)}; np1d report --testbed {testbed} shows it", highlight=False, soft_wrap=True)


def main() -> None:
    """Run the command; a mistake of the user is one sentence and exit code 2."""
    try:
        app(prog_name="np1d")
    except WorkflowError as error:
        err.print(f"error: {error}", highlight=False, markup=False, soft_wrap=True)
        sys.exit(2)
    except Exception as error:
        if isinstance(error, OSError) and error.errno in _MENDABLE:
            reason = f"{error.filename or 'a file'} cannot be written or read ({error.strerror})"
            err.print(f"error: {reason}; {_MENDABLE[error.errno]}", highlight=False, markup=False, soft_wrap=True)
            sys.exit(2)
        err.print_exception()
        err.print("this is a fault of np1d, no verdict and no result", highlight=False)
        sys.exit(FAULT)


FAULT = 70
"""Exit code of a fault of ours (`EX_SOFTWARE`): 1 is a verdict of the gate."""

_MENDABLE = {
    errno.ENOSPC: "free some space and run the same command again",
    errno.EDQUOT: "free some of your quota and run the same command again",
    errno.EACCES: "make it accessible to this user",
    errno.EEXIST: "a file stands where a folder is to be: name another place",
    errno.ENOTDIR: "a file stands where a folder is to be: name another place",
    errno.EISDIR: "it is a folder: name a file",
    errno.EROFS: "this file system takes no changes: work in another copy",
}
"""What the system refused, and the way out; anything else is a fault of ours and shows where."""

if __name__ == "__main__":
    main()
