"""A calibration measures an invalid session again, a few times, and keeps what it has of valid ones."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from workflows import gate_command
from workflows.errors import WorkflowError
from workflows.gate import GatedCell, InvalidSessionError, Side
from workflows.gate_command import SPARE, _calibrate_cell
from workflows.schema import GateMetric

COUNT = 8


class Maker:
    """Sessions of which those whose number is `bad` are invalid; each leaves a folder."""

    def __init__(self, bad: Sequence[int]) -> None:
        self.folders: dict[str, list[Path]] = {}
        self._bad, self._made = bad, 0

    def __call__(self, cell: GatedCell, sides: Sequence[Side]) -> dict[Side, float]:
        number, self._made = self._made, self._made + 1
        for side in sides:
            self.folders.setdefault(f"{side} {cell.name}", []).append(Path(f"s{number}"))
        if number in self._bad:
            raise InvalidSessionError(f"s{number} was late")
        return dict.fromkeys(sides, 100.0 + number % 3)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Folders whose passes are read."""
    seen: list[str] = []

    def entry(folder: Path, metric: str) -> dict[str, list[float]]:
        seen.append(folder.name)
        return {"passes": [100.0, 101.0]}

    monkeypatch.setattr(gate_command.baselines, "entry", entry)
    return seen


def test_invalid_sessions_are_measured_again_and_are_in_no_number(read: list[str]) -> None:
    cell, said = GatedCell("row", "output_tok_s", GateMetric.model_construct()), []
    _calibrate_cell("row", cell, Maker(bad=(0, 5)), COUNT, None, said.append)  # type: ignore[arg-type]
    assert len(cell.candidate) == COUNT and read == ["s1", "s2", "s3", "s4", "s6", "s7", "s8", "s9"]
    assert said == ["measured once more: s0 was late", "measured once more: s5 was late"]


def test_after_so_many_it_gives_up_and_says_how_far_it_came(read: list[str]) -> None:
    cell = GatedCell("row", "output_tok_s", GateMetric.model_construct())
    maker = Maker(bad=range(3, 3 + SPARE + 1))
    with pytest.raises(WorkflowError, match=rf"row cannot be calibrated: s5 was late; 3 of {COUNT} were valid"):
        _calibrate_cell("row", cell, maker, COUNT, None, lambda sentence: None)  # type: ignore[arg-type]
    assert read == []
