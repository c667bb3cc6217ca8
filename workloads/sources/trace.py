"""Replay of a request trace in the Mooncake form.

JSON lines with `timestamp`, `input_length`, `output_length` and `hash_ids`. A hash id stands for one block of prompt
tokens: equal ids are equal blocks, so the trace's sharing is kept exactly. The last block of a prompt is cut to the
prompt's length. Timestamps are milliseconds from the trace's start.
"""

import math

import numpy as np

from workloads.sources.datafile import json_lines
from workloads.sources.random import draw
from workloads.spec import SpecError, TraceSource
from workloads.traffic import Conversation, Prompt

_FIELDS = ("timestamp", "input_length", "output_length", "hash_ids")


class TraceTraffic:
    """Request i is line i of the trace; the file ends where it ends."""

    def __init__(self, source: TraceSource) -> None:
        self._source = source
        self._block = max(1, round(source.block_tokens * source.length_scale))
        self._lines = list(json_lines(source.path, source.sha256, _FIELDS))
        if not self._lines:
            raise SpecError(f"trace {source.path} is empty")

    def conversations(self, seed: int, count: int, *, first: int = 0) -> list[Conversation]:
        """The trace's requests, with their own times from the first one asked for. Raises SpecError past its end."""
        if first + count > len(self._lines):
            raise SpecError(f"the trace has {len(self._lines)} requests, fewer than the {first + count} asked for")
        wanted = self._lines[first : first + count]
        return [
            Conversation(
                turns=[self._prompt(seed, line)],
                intended_s=(float(line["timestamp"]) - float(wanted[0]["timestamp"])) / 1000,
            )
            for line in wanted
        ]

    def prefixes(self, seed: int) -> list[Prompt]:
        """A trace primes itself."""
        return []

    def _prompt(self, seed: int, line: dict[str, object]) -> Prompt:
        s = self._source
        length = max(1, round(int(str(line["input_length"])) * s.length_scale))
        hashes = line["hash_ids"]
        if not isinstance(hashes, list) or len(hashes) * self._block < length - self._block:
            raise SpecError(
                f"a request of the trace has {length} tokens but too few hash_ids for blocks of {self._block}"
            )
        blocks = [draw(seed, ("block", int(h)), self._block, s.vocab_low, s.vocab_high) for h in hashes]
        missing = math.ceil(length / self._block) - len(blocks)
        if missing > 0:  # rounding of scaled lengths may ask for one block more
            blocks.append(
                draw(seed, ("tail", int(hashes[-1]) if hashes else 0), self._block, s.vocab_low, s.vocab_high)
            )
        return Prompt(
            token_ids=np.concatenate(blocks)[:length],
            input_tokens=length,
            output_tokens=max(1, round(int(str(line["output_length"])) * s.length_scale)),
        )
