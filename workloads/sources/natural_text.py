"""Prompts of plain English sentences, for what random tokens misstate: acceptance of drafts, balance of experts.

Sentences are drawn from our own templates, encoded by the given tokenizer and cut to the exact token count; what is
sent is the token ids, so the server's count must be the same. Groups share a prefix as in `shared_prefix`.
"""

import random
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from workloads.sources.shared_prefix import shared_len
from workloads.spec import NaturalTextSource, SpecError
from workloads.traffic import Conversation, Prompt

_WHO = (
    "The engineer", "A gardener", "My neighbour", "The captain", "An old teacher", "The night clerk",
    "A young cook", "The surveyor", "Our librarian", "The ferry pilot", "A travelling actor", "The clockmaker",
)  # fmt: skip
_DID = (
    "measured", "repaired", "described", "compared", "lost", "bought", "painted", "counted", "moved", "forgot",
    "inspected", "borrowed",
)  # fmt: skip
_WHAT = (
    "the long bridge", "two copper pipes", "a map of the harbour", "seven small boxes", "the broken clock",
    "an unusual machine", "the second report", "a basket of pears", "the wooden gate", "three letters",
    "a heavy door", "the winter schedule",
)  # fmt: skip
_WHEN = (
    "before the rain began", "during the third week of spring", "after the meeting", "while the market was open",
    "when the lamps were lit", "on a quiet Sunday", "at the end of the season", "as the train arrived",
    "because nobody else would", "although it was already late",
)  # fmt: skip
_THEN = (
    "Nobody was surprised.", "It cost {n} coins.", "The answer took {n} minutes.", "Somebody wrote it on page {n}.",
    "Later, {n} people asked why.", "The reason was simple.", "It happened again in the following year.",
    "The rest of the day passed slowly.",
)  # fmt: skip


class NaturalTextTraffic:
    """Prompt i belongs to group i modulo the number of groups."""

    def __init__(self, source: NaturalTextSource) -> None:
        if not Path(source.tokenizer).is_file():
            raise SpecError(f"there is no tokenizer {source.tokenizer}; give the path of a tokenizer.json")
        self._source = source
        self._tokenizer = Tokenizer.from_file(source.tokenizer)
        self._shared = shared_len(source.input_len, source.shared_ratio)

    def conversations(self, seed: int, count: int, *, first: int = 0) -> list[Conversation]:
        """Prefix of the group, then sentences of the prompt's own."""
        s = self._source
        prefixes = [self._ids(f"{seed}/prefix/{group}", self._shared) for group in range(s.groups)]
        made = []
        for i in range(first, first + count):
            group = i % s.groups
            own = self._ids(f"{seed}/own/{i}", s.input_len - self._shared)
            ids = np.concatenate([prefixes[group], own])
            prompt = Prompt(
                token_ids=ids,
                text=self._tokenizer.decode(ids.tolist()),
                input_tokens=s.input_len,
                output_tokens=s.output_len,
                shared_tokens=self._shared,
                group=group,
            )
            made.append(Conversation(turns=[prompt]))
        return made

    def prefixes(self, seed: int) -> list[Prompt]:
        """Each group's prefix alone."""
        if not self._shared:
            return []
        return [
            Prompt(
                token_ids=self._ids(f"{seed}/prefix/{group}", self._shared),
                input_tokens=self._shared,
                output_tokens=1,
                shared_tokens=self._shared,
                group=group,
            )
            for group in range(self._source.groups)
        ]

    def _ids(self, name: str, count: int) -> np.ndarray:
        draw = random.Random(name)
        ids: list[int] = []
        while len(ids) < count:
            text = " ".join(sentence(draw) for _ in range(64)) + " "
            ids += self._tokenizer.encode(text, add_special_tokens=False).ids
        return np.asarray(ids[:count], dtype=np.int32)


def sentence(draw: random.Random) -> str:
    """Two short English sentences about nothing in particular."""
    first = f"{draw.choice(_WHO)} {draw.choice(_DID)} {draw.choice(_WHAT)} {draw.choice(_WHEN)}."
    return f"{first} {draw.choice(_THEN).format(n=draw.randint(2, 900))}"
