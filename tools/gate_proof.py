"""Does the gate find a loss that was planted, and only that? Measured once on this machine, end to end.

    python tools/gate_proof.py --out docs/measurements/gate.md [--times 3] [--loss 0.1] [--row decode/baseline]

Two clones of this repository: in `slow` every step of the engine sleeps so long that it reaches 1 - loss of its speed,
in `same` the same lines sleep for nothing. Each is judged against the commit before, several times in turn, by the real
`np1d gate`, in pairs; `np1d calibrate` measures the noise of equal pairs first, and a threshold below it must be
refused. Some thirty pairs of about 80 s each on two quiet cores; the page says how loaded the machine was, and keeps
what stands in it from its first `## ` on. Exit codes: 0 every verdict was the expected one, 1 another was not, 2 the
machine is too noisy for a gate.
"""

import argparse
import dataclasses
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STREAM = "stack/runner/stream.py"
STEP = "                work(read.set)\n"
"""Where the CPU's stream runs a step."""
IDENTITY = ("-c", "user.name=gate proof", "-c", "user.email=gate-proof@example.invalid")
EXPECTED = {"slow": "FAIL", "same": "PASS"}
CALIBRATION = "results/cpu/calibration.json"


@dataclasses.dataclass(frozen=True, slots=True)
class Step:
    """One command of np1d and what came of it."""

    name: str
    code: int
    said: str
    minutes: float
    load: tuple[float, float]
    """Load average before and after."""
    cells: tuple[dict[str, object], ...] = ()


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--times", type=int, default=2, help="gates of each kind")
    parser.add_argument("--loss", type=float, default=0.1, help="planted loss of speed")
    parser.add_argument("--row", default="decode/baseline")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="np1d-gate-proof-") as folder:
        shares = {"slow": options.loss / (1 - options.loss), "same": 0.0}
        clones = {name: clone(Path(folder) / name, share) for name, share in shares.items()}
        calibrated = np1d(clones["same"], "calibrate", options.row)
        if calibrated.code != 0:
            sys.stderr.write("nothing measured: the gate would refuse this machine, as np1d calibrate has just said\n")
            return 2
        (clones["slow"] / CALIBRATION).parent.mkdir(parents=True)
        shutil.copy(clones["same"] / CALIBRATION, clones["slow"] / CALIBRATION)
        refusal = refused(clones["same"], options.row)
        gates: list[Step] = []
        for number in range(1, options.times + 1):
            for name, place in clones.items():
                file = Path(folder) / f"{name}{number}.json"
                gates.append(
                    np1d(place, "gate", options.row, "--base", "HEAD~1", "--out", str(file), name=name, file=file)
                )
                options.out.write_text(page(calibrated, refusal, gates, options))
                sys.stderr.write(f"{options.out}: {len(gates)} of {2 * options.times} gates\n")
    return int(any(verdict(gate) != EXPECTED[gate.name] for gate in gates))


def clone(folder: Path, share: float) -> Path:
    """A clone of the last commit whose steps last longer by this share of themselves, as a commit of its own."""
    git("clone", "--quiet", "--shared", str(ROOT), str(folder), cwd=ROOT)
    if (ROOT / ".cache" / "checkpoints").is_dir():
        (folder / ".cache").mkdir()
        (folder / ".cache" / "checkpoints").symlink_to(ROOT / ".cache" / "checkpoints")
    stream = folder / STREAM
    stream.write_text(planted(stream.read_text(), share))
    git(*IDENTITY, "commit", "--quiet", "--all", "--message", f"every step lasts {share:.1%} longer", cwd=folder)
    return folder


def planted(source: str, share: float) -> str:
    """The stream's source with a sleep after every step. Raises ValueError when it has changed beyond recognition."""
    if source.count(STEP) != 1:
        raise ValueError(f"{STREAM} has no single line {STEP.strip()!r} any more; mend STEP in tools/gate_proof.py")
    return source.replace(STEP, f"{STEP}                time.sleep({share!r} * (time.perf_counter() - begun.at_s))\n")


def np1d(place: Path, *arguments: str, name: str = "", file: Path | None = None) -> Step:
    """Run a command of np1d in a clone; its words are passed on."""
    began, before = time.monotonic(), os.getloadavg()[0]
    command = [sys.executable, "-m", "workflows.cli", *arguments]
    done = subprocess.run(command, cwd=place, stdout=subprocess.PIPE, text=True, check=False)
    sys.stderr.write(done.stdout)
    cells = tuple(json.loads(file.read_text())["cells"]) if file and file.exists() else ()
    load = (before, os.getloadavg()[0])
    return Step(name or arguments[0], done.returncode, done.stdout, (time.monotonic() - began) / 60, load, cells)


def refused(place: Path, row: str) -> Step:
    """A gate whose threshold lies far below the noise that was measured: it must be refused without a session."""
    config = place / "workflows" / "config" / "config.yaml"
    honest = config.read_text()
    config.write_text(honest.replace("max_regression: 0.06", "max_regression: 0.001"))
    command = [sys.executable, "-m", "workflows.cli", "gate", row, "--base", "HEAD~1"]
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, check=False)
    config.write_text(honest)
    return Step("refused", done.returncode, done.stderr.strip(), 0.0, (os.getloadavg()[0],) * 2)


def verdict(step: Step) -> str:
    """Worst verdict of a gate, from its exit code."""
    return {0: "PASS", 1: "FAIL", 3: "INVALID", 4: "INCONCLUSIVE"}.get(step.code, f"code {step.code}")


def page(calibrated: Step, refusal: Step, gates: list[Step], options: argparse.Namespace) -> str:
    """What was seen so far, as Markdown."""
    commit = git("rev-parse", "--short", "HEAD", cwd=ROOT)
    as_expected = sum(verdict(gate) == EXPECTED[gate.name] for gate in gates)
    minutes = calibrated.minutes + sum(gate.minutes for gate in gates)
    said = [line for line in calibrated.said.splitlines() if "uphold a threshold" in line]
    command = (
        f"python tools/gate_proof.py --out FILE --times {options.times} --loss {options.loss:g} --row {options.row}"
    )
    lines = [
        "# The gate, end to end", "",
        f"**{as_expected} of {len(gates)} verdicts as expected.** Commit {commit}, "
        f"{time.strftime('%Y-%m-%d', time.gmtime())}, {os.cpu_count()} cores, {minutes:.0f} minutes: `{command}`. "
        f"In one clone every step of the engine sleeps so long that it reaches {1 - options.loss:g} of its speed, in "
        "the other it sleeps for nothing; each is judged against the commit before.", "",
        "| engine | verdict | expected | ratio | 95 % interval | ratios of the pairs | minutes | load before, after |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
        *(_line(step, cell) for step in gates for cell in step.cells or ({},)), "",
        f"`np1d calibrate` (exit code {calibrated.code}, {calibrated.minutes:.0f} minutes, load "
        f"{calibrated.load[0]:.1f}): {'; '.join(said)}.", "",
        f"A threshold of 0.1 % on this noise: exit code {refusal.code}, {refusal.said}", "",
    ]  # fmt: skip
    return "\n".join(lines) + kept(options.out)


def kept(out: Path) -> str:
    """What the page says beside the record: everything from its first heading of the second level on."""
    _, heading, rest = (out.read_text() if out.exists() else "").partition("\n## ")
    return heading + rest


def _line(step: Step, cell: dict[str, object]) -> str:
    bounds = cell.get("interval")
    interval = f"{bounds[0]:.3f} to {bounds[1]:.3f}" if isinstance(bounds, list) else "none"
    ratio = f"{cell['ratio']:.3f}" if isinstance(cell.get("ratio"), float) else "none"
    ratios = cell.get("ratios")
    pairs = ", ".join(f"{value:.3f}" for value in ratios) if isinstance(ratios, list) else "none"
    what = "every step sleeps" if step.name == "slow" else "nothing planted"
    load = f"{step.load[0]:.1f}, {step.load[1]:.1f}"
    told = (what, verdict(step), EXPECTED[step.name], ratio, interval, pairs, f"{step.minutes:.1f}", load)
    return f"| {' | '.join(told)} |"


def git(*arguments: str, cwd: Path) -> str:
    """One git command; its output."""
    done = subprocess.run(["git", *arguments], cwd=cwd, capture_output=True, text=True, check=True)
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
