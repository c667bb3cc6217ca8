"""`python3 -m tools.gpu.micro.collectives`: what a tensor-parallel step sends between GPUs of one host, and its floors.

    [--ranks 2] [--out FILE] [--backend gloo --divide 1000]        the latter tries it on a CPU

A process a rank. Inputs are drawn anew before each check, from seeds that all ranks know, so each compares its result
with what it must be, to the bit (small integers add up exactly). Times are of one collective as a CUDA graph with cold
caches, the slowest rank's median. A floor is what must leave a GPU, over 450 GB/s of NVLink one way (datasheet). NVLink
multicast stays off.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tools.gpu.micro.timing import capture

REPLAYS = 30
NVLINK = 450e9
LIMIT_S = 120.0


@dataclass(frozen=True, slots=True)
class Collective:
    """One of a step. `values` is the size of the whole tensor, over all ranks where it is spread."""

    kind: str
    label: str
    values: int
    dtype: torch.dtype
    anchors: dict[int, str]
    targets_us: dict[int, float]

    def floor_us(self, values: int, ranks: int) -> float:
        """The time that what each GPU must send takes."""
        whole = values * self.dtype.itemsize * (ranks - 1) / ranks
        return (2 * whole if self.kind == "all_reduce" else whole) / NVLINK * 1e6


COLLECTIVES = (
    Collective(
        "all_reduce", "D15, D16: rows of a verify", 1056 * 4096, torch.bfloat16,
        {2: "custom 30, NCCL 46 us", 4: "custom 44, NCCL 60 us"}, {2: 28, 4: 40},
    ),
    Collective("all_gather", "P15: a packet of FP8 rows", 32768 * 4224, torch.uint8, {4: "353 us"}, {4: 340}),
    Collective(
        "reduce_scatter", "P16: rows of a chunk", 32768 * 4096, torch.bfloat16, {4: "669 us"}, {4: 650},
    ),
)  # fmt: skip


def main() -> int:
    """Exit code 1 when a rank failed or a result is wrong."""
    options = _parser().parse_args()
    if options.rank is not None:
        return run_rank(options)
    with tempfile.TemporaryDirectory() as folder:
        meeting, found = Path(folder) / "meeting", Path(folder) / "found.json"
        words = [sys.executable, "-m", "tools.gpu.micro.collectives", "--ranks", str(options.ranks)]
        words += ["--backend", options.backend, "--divide", str(options.divide), "--meeting", str(meeting)]
        words += ["--out", str(found)]
        env = {**os.environ, "NCCL_NVLS_ENABLE": "0"}
        started = [subprocess.Popen([*words, "--rank", str(rank)], env=env) for rank in range(options.ranks)]
        codes = ended(started)
        rows: list[dict[str, Any]] = json.loads(found.read_text()) if found.exists() else []
    for row in rows:
        print(line(row), flush=True)
    if options.out:
        options.out.write_text(json.dumps(rows, indent=1))
    return int(any(codes) or len(rows) < len(COLLECTIVES) or not all(row["right"] for row in rows))


def ended(processes: "list[subprocess.Popen[bytes]]") -> list[int]:
    """Exit codes; when one fails or time is up, the others are ended: they would wait for it."""
    end_s = time.monotonic() + LIMIT_S
    while any(process.poll() is None for process in processes):
        if time.monotonic() > end_s or any(process.poll() for process in processes):
            for process in processes:
                process.kill()
        time.sleep(0.05)
    return [process.wait() for process in processes]


def run_rank(options: argparse.Namespace) -> int:
    """One rank's part. Rank 0 writes the rows."""
    rank, ranks = options.rank, options.ranks
    device = f"cuda:{rank}" if options.backend == "nccl" else "cpu"
    if device != "cpu":
        torch.cuda.set_device(rank)
    dist.init_process_group(options.backend, init_method=f"file://{options.meeting}", rank=rank, world_size=ranks)
    rows = [measured(collective, rank, ranks, device, options.divide) for collective in COLLECTIVES]
    if rank == 0:
        options.out.write_text(json.dumps(rows))
    dist.destroy_process_group()
    return 0


def measured(collective: Collective, rank: int, ranks: int, device: str, divide: int) -> dict[str, Any]:
    """Whether it is right on every rank, and the slowest rank's time."""
    values = collective.values // divide // ranks * ranks
    given, wanted = share(collective.kind, drawn(collective, values, ranks, 0), rank)
    held, result = given.to(device), torch.empty_like(wanted, device=device)
    result = held if collective.kind == "all_reduce" else result
    call = launch(collective.kind, held, result)
    repeat: Callable[[], Any] = capture(call).replay if device != "cpu" else call
    right = True
    for seed in (1, 2):
        given, wanted = share(collective.kind, drawn(collective, values, ranks, seed), rank)
        result.zero_()
        held.copy_(given)
        repeat()
        right = right and torch.equal(result.cpu(), wanted)
    said = torch.tensor([float(right), -timed(repeat, device)], device=device, dtype=torch.float64)
    dist.all_reduce(said, op=dist.ReduceOp.MIN)
    row: dict[str, Any] = {"kind": collective.kind, "label": collective.label, "ranks": ranks, "right": bool(said[0])}
    row |= {"us": -float(said[1]), "bytes": values * collective.dtype.itemsize}
    row["floor_us"] = collective.floor_us(values, ranks)
    return row | {"anchor": collective.anchors.get(ranks, ""), "target_us": collective.targets_us.get(ranks)}


def drawn(collective: Collective, values: int, ranks: int, seed: int) -> list[Tensor]:
    """Every rank's input to a reduction, or to a gathering its part of the whole."""
    source = torch.Generator().manual_seed(seed)
    size = values // ranks if collective.kind == "all_gather" else values
    return [torch.randint(0, 8, (size,), generator=source).to(collective.dtype) for _ in range(ranks)]


def share(kind: str, parts: list[Tensor], rank: int) -> tuple[Tensor, Tensor]:
    """A rank's input and what its result must be."""
    if kind == "all_gather":
        return parts[rank], torch.cat(parts)
    total = torch.stack(parts).sum(0, dtype=parts[0].dtype)
    return parts[rank], total if kind == "all_reduce" else total.chunk(len(parts))[rank]


def launch(kind: str, held: Tensor, result: Tensor) -> Callable[[], Any]:
    """The collective from `held` into `result`; a reduction of all to all is in place."""
    return {
        "all_reduce": lambda: dist.all_reduce(held),
        "all_gather": lambda: dist.all_gather_into_tensor(result, held),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(result, held),
    }[kind]


def timed(repeat: Callable[[], Any], device: str) -> float:
    """Median of a number of repeats that all ranks share, in microseconds."""
    if device == "cpu":
        begun_s = time.perf_counter()
        repeat()
        return (time.perf_counter() - begun_s) * 1e6
    flush, meeting = torch.empty(64 * 2**20, dtype=torch.int32, device=device), torch.zeros(1, device=device)
    events = []
    for _ in range(REPLAYS):
        flush.zero_()
        dist.all_reduce(meeting)
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        repeat()
        end.record()
        events.append((begin, end))
    torch.cuda.synchronize()
    return sorted(begin.elapsed_time(end) * 1e3 for begin, end in events)[REPLAYS // 2]


def line(row: dict[str, Any]) -> str:
    """A row of the table."""
    target = f" target {row['target_us']:.0f}" if row["target_us"] else ""
    share_of = f"{row['floor_us'] / row['us']:4.0%} of floor" if row["us"] else ""
    verdict = "ok" if row["right"] else "WRONG"
    return f"{verdict:6} {row['kind']:15} {row['label']:30} {row['us']:9.1f} us {share_of}{target}  {row['anchor']}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python3 -m tools.gpu.micro.collectives", description=__doc__)
    parser.add_argument("--ranks", type=int, default=2, help="GPUs")
    parser.add_argument("--backend", choices=("nccl", "gloo"), default="nccl")
    parser.add_argument("--divide", type=int, default=1, help="makes tensors smaller")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--meeting", type=Path, help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main())
