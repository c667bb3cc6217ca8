"""Tuned tiles of `triton_grouped`: a file of `configs/`, or one named by its path, that says which tile serves how many
rows. Reads no tensor and imports no PyTorch.

A table is of one shape of experts on one kind of GPU, and of nothing else: another shape or GPU is refused, since tiles
that fit there were never measured. Between the measured row counts the nearest one's tile is used.
"""

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from stack.core.errors import ConfigError

SCHEMA = "moe_tiles/1"
FOLDER = Path(__file__).with_name("configs")


@dataclass(frozen=True, slots=True, order=True)
class Launch:
    """How one product is compiled."""

    warps: int
    stages: int


@dataclass(frozen=True, slots=True, order=True)
class Tile:
    """Rows of a tile, which both products share because the sorted layout is padded to them, and each one's launch."""

    rows: int
    up: Launch
    down: Launch


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertShape:
    """What a table was measured for."""

    experts: int
    width: int
    inner: int
    choices: int
    weights: str
    """`fp8`, or the dtype of unquantised experts."""
    gpu: str
    """The device's name."""


@dataclass(frozen=True, slots=True)
class TileTable:
    """Tiles by the number of rows in front of the router; `name` is what a refusal calls it."""

    name: str
    shape: ExpertShape
    tile_of: dict[int, Tile]

    def tile(self, num_rows: int) -> Tile:
        """The tile of the nearest measured count, by ratio."""
        nearest = min(self.tile_of, key=lambda count: (abs(math.log(count / max(num_rows, 1))), count))
        return self.tile_of[nearest]

    def check(self, found: ExpertShape) -> None:
        """Raises ConfigError for experts or a GPU that the table was not measured for, naming both values."""
        ours, theirs = asdict(self.shape), asdict(found)
        if differing := [f"{name} {ours[name]}, here {theirs[name]}" for name in ours if ours[name] != theirs[name]]:
            raise ConfigError(
                f"the tiles of {self.name} were measured for {'; '.join(differing)}; "
                "tune again (np1d tune moe) or leave kernels.moe_table empty"
            )


def load_table(name: str) -> TileTable:
    """A table by its name in `configs/` or its path. Raises ConfigError with the way out."""
    path = Path(name) if "/" in name or name.endswith(".json") else FOLDER / f"{name}.json"
    try:
        body = json.loads(path.read_text())
        if body["schema"] != SCHEMA:
            raise ConfigError(f"{path} has schema {body['schema']}, not {SCHEMA}; tune again with this version")
        shape = ExpertShape(**body["shape"])
        tile_of = {int(count): as_tile(entry["tile"]) for count, entry in body["rows"].items()}
    except FileNotFoundError:
        raise ConfigError(f"kernels.moe_table: there is no {path}; np1d tune moe writes one") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path} is not a table of tiles: {error!r}") from None
    if not tile_of or min(tile_of) < 1:
        raise ConfigError(f"{path} holds no tile for any number of rows")
    return TileTable(path.stem, shape, tile_of)


def as_tile(plain: dict[str, Any]) -> Tile:
    """The inverse of `dataclasses.asdict`. Raises KeyError or TypeError."""
    return Tile(int(plain["rows"]), Launch(**plain["up"]), Launch(**plain["down"]))
