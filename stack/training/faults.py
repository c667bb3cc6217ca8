"""Mistakes planted in the engine, one a mechanism: a trained checkpoint has to show each of them.

A fault is a checkpoint whose configuration says something else, or an engine function replaced while an instance is
built and runs. Only the CPU's implementations are replaced.
"""

import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from stack.kernels.index_select import torch_select
from stack.kernels.kda_chunk import torch_chunk
from stack.kernels.kda_decode import torch_step
from stack.kernels.kda_verify import torch_chain
from stack.speculation.commit import StateCommit


@dataclass(frozen=True, slots=True)
class Fault:
    """`plant` changes the engine inside its context and yields the checkpoint to load (made in the given folder)."""

    name: str
    shows_in: str
    """`accuracy` of plain decoding, or `dflash2` or `mtp`: accuracy and acceptance under that drafter."""
    plant: Callable[[Path, Path], contextlib.AbstractContextManager[Path]]


def variant(source: Path, target: Path, change: Callable[[dict[str, Any]], None], *, part: str = ".") -> Path:
    """A folder like `source` whose config.json (or its draft's, with `part`) is changed; weights are links."""
    for folder in (Path(), Path("draft")):
        if not (source / folder).is_dir():
            continue
        (target / folder).mkdir(parents=True, exist_ok=True)
        for file in (source / folder).iterdir():
            if file.is_file() and file.name != "config.json":
                (target / folder / file.name).symlink_to(file.resolve())
        config = json.loads((source / folder / "config.json").read_text())
        if folder == Path(part):
            change(config)
        (target / folder / "config.json").write_text(json.dumps(config))
    return target


@contextlib.contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    honest = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, honest)


@contextlib.contextmanager
def _gate_without_lower_bound(source: Path, scratch: Path) -> Iterator[Path]:
    """The softplus form of other models stands where the bounded sigmoid belongs."""

    def log_decay(f_RHD: Tensor, A_log_H: Tensor, dt_bias_HD: Tensor, lower_bound: float) -> Tensor:
        bias = dt_bias_HD.view_as(f_RHD[0]).float()
        return -A_log_H.float().exp()[:, None] * functional.softplus(f_RHD.float() + bias)

    with contextlib.ExitStack() as planted:
        for module in (torch_chunk, torch_step, torch_chain):
            planted.enter_context(_replaced(module, "log_decay", log_decay))
        yield source


@contextlib.contextmanager
def _dropped_index_tail(source: Path, scratch: Path) -> Iterator[Path]:
    """Tokens of the open pool are attended to by nobody; a row whose set would be empty keeps it."""
    honest = torch_select.index_select

    def index_select(q_THD: Tensor, *rest: Any, kpool: int, **options: Any) -> Tensor:
        index_TW = honest(q_THD, *rest, kpool=kpool, **options)
        position_T = rest[6]
        tail_T1 = ((position_T + 1) % kpool)[:, None]
        count_T1 = (index_TW >= 0).sum(1, keepdim=True)
        place_W = torch.arange(index_TW.shape[1], device=index_TW.device)
        return torch.where((place_W >= count_T1 - tail_T1) & (count_T1 > tail_T1), -1, index_TW)

    with _replaced(torch_select, "index_select", index_select):
        yield source


@contextlib.contextmanager
def _clamp_off(source: Path, scratch: Path) -> Iterator[Path]:
    yield variant(source, scratch / "clamp_off", lambda c: c["text_config"].update(swiglu_limit=1e9))


@contextlib.contextmanager
def _state_not_committed(source: Path, scratch: Path) -> Iterator[Path]:
    """A verify's accepted rows never reach the recurrent states."""
    with _replaced(StateCommit, "__call__", lambda *arguments: None):
        yield source


@contextlib.contextmanager
def _wrong_tap_layer(source: Path, scratch: Path) -> Iterator[Path]:
    def change(config: dict[str, Any]) -> None:
        options = config["dflash_config"]
        options["target_layer_ids"] = [layer - 1 for layer in options["target_layer_ids"]]

    yield variant(source, scratch / "wrong_tap", change, part="draft")


FAULTS = (
    Fault("gate without lower bound", "accuracy", _gate_without_lower_bound),
    Fault("index tail dropped", "mtp", _dropped_index_tail),  # the MTP layer has no recurrent layer to know them from
    Fault("clamp off", "accuracy", _clamp_off),
    Fault("state not committed", "dflash2", _state_not_committed),
    Fault("taps one layer early", "dflash2", _wrong_tap_layer),
)
