"""Writes a corpus as JSON lines, one file a process."""

import json
from collections.abc import Iterable
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from workloads.corpus.documents import documents


def write_training_text(folder: Path, *, count: int, processes: int, seed: str) -> int:
    """Write at least `count` documents into `processes` files of `folder`; returns how many were written."""
    folder.mkdir(parents=True, exist_ok=True)
    share = -(-count // processes)
    jobs = [(folder / f"{i:03}.jsonl", f"{seed}/{i}", share) for i in range(processes)]
    if processes == 1:
        _write_shard(*jobs[0])
    else:
        with get_context("spawn").Pool(processes) as pool:
            pool.starmap(_write_shard, jobs)
    return share * processes


def write_lines(path: Path, lines: Iterable[dict[str, Any]]) -> None:
    """One JSON object a line."""
    with path.open("w") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)


def _write_shard(path: Path, seed: str, count: int) -> None:
    write_lines(path, ({"kind": d.kind, "text": d.text} for d in islice(documents(seed), count)))
