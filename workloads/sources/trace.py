"""Replay of a request trace in the Mooncake form.

JSON lines with `timestamp`, `input_length`, `output_length` and `hash_ids`. A hash id stands for one block of prompt
tokens: equal ids are equal blocks, so the trace's sharing is kept exactly. The last block of a prompt is cut to the
prompt's length. Timestamps are milliseconds from the trace's start.
"""

import math
from typing import Annotated

import numpy as np
from pydantic import BaseModel, Field

from workloads.sources.datafile import json_lines
from workloads.sources.random import draw
from workloads.spec import SpecError, TraceSource
from workloads.traffic import Conversation, Prompt


class TraceLine(BaseModel):
    """One request of a trace."""

    timestamp: float = Field(ge=0, allow_inf_nan=False)
    """Milliseconds from the trace's start; never earlier than the line before."""
    input_length: int = Field(ge=1)
    output_length: int = Field(ge=1)
    hash_ids: list[Annotated[int, Field(ge=0)]]
    """One for each block of the prompt, the last of which may be a part of one."""


class TraceTraffic:
    """Request i is line i of the trace; the file ends where it ends."""

    def __init__(self, source: TraceSource) -> None:
        self._source = source
        self._block = max(1, round(source.block_tokens * source.length_scale))
        self._lines: list[TraceLine] = []
        for number, line in json_lines(source.path, source.sha256, TraceLine):
            self._check(number, line)
            self._lines.append(line)
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
                intended_s=(line.timestamp - wanted[0].timestamp) / 1000,
            )
            for line in wanted
        ]

    def prefixes(self, seed: int) -> list[Prompt]:
        """A trace primes itself."""
        return []

    def _check(self, number: int, line: TraceLine) -> None:
        """Raise SpecError for what no single field shows."""
        where, block = f"the trace's request in line {number}", self._source.block_tokens
        if self._lines and line.timestamp < self._lines[-1].timestamp:
            raise SpecError(f"{where} is earlier than the one before it; sort the trace by timestamp")
        if abs(len(line.hash_ids) - math.ceil(line.input_length / block)) > 1:
            raise SpecError(
                f"{where} has {len(line.hash_ids)} hash_ids for {line.input_length} tokens, "
                f"which are no blocks of {block}; set block_tokens to what one hash id of this trace stands for"
            )

    def _prompt(self, seed: int, line: TraceLine) -> Prompt:
        s = self._source
        length = max(1, round(line.input_length * s.length_scale))
        blocks = [draw(seed, ("block", h), self._block, s.vocab_low, s.vocab_high) for h in line.hash_ids]
        if (missing := math.ceil(length / self._block) - len(blocks)) > 0:  # rounding of scaled lengths asks for more
            last = line.hash_ids[-1] if line.hash_ids else 0
            blocks.append(draw(seed, ("tail", last), missing * self._block, s.vocab_low, s.vocab_high))
        return Prompt(
            token_ids=np.concatenate(blocks)[:length],
            input_tokens=length,
            output_tokens=max(1, round(line.output_length * s.length_scale)),
        )
