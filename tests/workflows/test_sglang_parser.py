"""The published engine's own argument parser reads every rendered launch, after a shell has filled in its variables."""

import json
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from workflows.catalog import HALVES, Catalog, load_catalog, sglang_column
from workflows.engines.sglang import Command, ascend_commands, h200_commands
from workflows.resolution import resolve
from workflows.scripts import quote

ROOT = Path(__file__).resolve().parents[2]
VERSION = "0.5.20"
UNPACKED = ROOT / ".cache" / f"sglang-{VERSION}"
ASCEND_ONLY = {
    "--cuda-graph-bs",
    "--enable-nsa-prefill-context-parallel",
    "--moe-dense-tp",
    "--nsa-prefill-cp-mode",
    "--prefill-round-robin-balance",
}
"""Published Ascend flags that this version does not know: the page was written for another one."""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The published baseline's wheel, unpacked and without its dependencies."""
    if not (UNPACKED / "sglang" / "srt" / "server_args.py").exists():
        folder = tmp_path_factory.mktemp("wheel")
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--dest", str(folder),
                   f"sglang=={VERSION}"]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        wheels = list(folder.glob("*.whl"))
        if not wheels:
            pytest.skip(f"the wheel of sglang {VERSION} cannot be fetched here: {done.stderr.strip()[-200:]}")
        with zipfile.ZipFile(wheels[0]) as archive:
            archive.extractall(UNPACKED)
    return UNPACKED


def filled_in(command: Command, before: str = "") -> list[str]:
    """The words as the program receives them."""
    exports = "".join(f"export {key}={quote(value)}\n" for key, value in command.env.items())
    words = " ".join(quote(word) for word in command.arguments)
    script = f"export NODE_A=192.0.2.10 NODE_B=192.0.2.11\n{before}{exports}printf '%s\\0' {words}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    return done.stdout.split("\0")[:-1]


def parse(wheel: Path, commands: list[list[str]]) -> list[dict[str, object]]:
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests/support/sglang_parser.py"), str(wheel)],
        input=json.dumps(commands), capture_output=True, text=True, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def h200_launches(catalog: Catalog) -> Iterator[tuple[str, Command]]:
    for entry in catalog.rows.values():
        for testbed in ("h200x8", "h200x16"):
            if resolve(catalog, entry, testbed).status in ("runnable", "script_only"):
                for command in h200_commands(catalog, entry.name, entry.workloads[0]):
                    if command.role:
                        yield f"{entry.name} {testbed} {command.name}", command


def rows_with_a_launch(catalog: Catalog) -> set[str]:
    """Rows whose column for the published engine gives a launch for both halves, on whatever testbed."""
    serving = [entry for entry in catalog.rows.values() if entry.suite_id != "ascend"]
    return {
        entry.name for entry in serving if not any(sglang_column(catalog, entry.name, half)["none"] for half in HALVES)
    }


def test_every_row_with_a_launch_is_parsed_below() -> None:
    catalog = load_catalog()
    rows = {name.split()[0] for name, _ in h200_launches(catalog)}
    assert rows == rows_with_a_launch(catalog)
    assert {"prefill/overlap_off", "prefill/chunks32k", "drafters/mtp718"} <= rows
    overlap_off = [command for name, command in h200_launches(catalog) if name.startswith("prefill/overlap_off")]
    assert any("--disable-overlap-schedule" in command.arguments for command in overlap_off)


def test_every_h200_flag_is_known_with_its_value(wheel: Path) -> None:
    launches = dict(h200_launches(load_catalog()))
    assert len(launches) > 40
    answers = parse(wheel, [filled_in(command) for command in launches.values()])
    wrong = {name: answer for name, answer in zip(launches, answers, strict=True) if answer["left"] or answer["error"]}
    assert wrong == {}


def test_ascend_flags_that_are_not_known_are_the_listed_ones(wheel: Path) -> None:
    catalog = load_catalog()
    commands = []
    for entry in catalog.rows.values():
        if entry.suite_id == "ascend":
            scenario = catalog.launches[entry.row.id]
            lists = "".join(
                f"{name}=({' '.join(f'192.0.2.{i}' for i, _ in enumerate(places, 1))})\n"
                for name, places in scenario["topology"]["ip_placeholders"].items()
            )
            before = f"export MODEL_PATH=/model\n{lists}"
            commands += [filled_in(command, before) for command in ascend_commands(scenario) if command.role]
    answers = parse(wheel, commands)
    unknown = {flag for answer in answers for flag in answer["unknown"]}  # type: ignore[attr-defined]
    assert unknown == ASCEND_ONLY
    assert [answer["error"] for answer in answers if answer["error"]] == []
