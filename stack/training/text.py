"""Text as token ids on the device: JSON-lines files are encoded once, rows for a step are drawn by its number.

A row begins where a document begins and runs on into the next ones, so every row starts like a prompt does. The rows of
a step follow from seed and step alone: a resumed run sees what an unbroken one would.

R rows, T tokens.
"""

import json
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from stack.training.tokenizer import END_ID

_BATCH = 2000


def encode_corpus(folder: Path, tokenizer: Path, processes: int) -> None:
    """Write `*.tokens.npy` and `*.starts.npy` beside every JSON-lines file of `folder` that has none yet."""
    jobs = [(file, tokenizer) for file in sorted(folder.glob("*.jsonl")) if not _starts_of(file).exists()]
    if processes == 1 or len(jobs) <= 1:
        for job in jobs:
            _encode(*job)
        return
    with get_context("spawn").Pool(processes) as pool:
        pool.starmap(_encode, jobs)


class Corpus:
    """All encoded documents of a folder, one behind the other."""

    def __init__(self, folder: Path, device: torch.device) -> None:
        files = sorted(folder.glob("*.tokens.npy"))
        if not files:
            raise SystemExit(f"no encoded text in {folder}; write it with python -m workloads.corpus train {folder}")
        tokens, starts, before = [], [], 0
        for file in files:
            part = np.load(file)
            starts.append(np.load(file.with_name(file.name.replace(".tokens.", ".starts."))) + before)
            tokens.append(part)
            before += len(part)
        self.num_tokens = before
        self._tokens = torch.from_numpy(np.concatenate(tokens)).to(device)
        self._starts = torch.from_numpy(np.concatenate(starts)).to(device)

    def rows(self, count: int, length: int, *, seed: int, step: int) -> Tensor:
        """int64 [R, T]: the rows of one step."""
        draw = torch.Generator().manual_seed(seed * 1_000_003 + step)
        picked = torch.randint(len(self._starts), (count,), generator=draw).to(self._starts.device)
        place = self._starts[picked][:, None] + torch.arange(length, device=self._starts.device)
        return self._tokens[place % self.num_tokens].long()


def _encode(file: Path, tokenizer: Path) -> None:
    encoder, ids, starts, at = Tokenizer.from_file(str(tokenizer)), [], [], 0
    with file.open() as lines:
        texts = [json.loads(line)["text"] for line in lines]
    for begin in range(0, len(texts), _BATCH):
        for one in encoder.encode_batch(texts[begin : begin + _BATCH], add_special_tokens=False):
            starts.append(at)
            ids.append(np.asarray([*one.ids, END_ID], dtype=np.int16))
            at += len(ids[-1])
    np.save(file.with_suffix(".tokens.npy"), np.concatenate(ids))
    np.save(_starts_of(file), np.asarray(starts, dtype=np.int64))


def _starts_of(file: Path) -> Path:
    return file.with_suffix(".starts.npy")
