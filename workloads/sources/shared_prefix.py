"""Prompts of random token ids in groups; the prompts of a group begin with the same tokens.

The shared length is `shared_ratio` of the prompt, rounded to a whole token. A cache that reuses whole pages can hit
less: see `shared_len` and `reusable_len`.
"""

import numpy as np

from workloads.sources.random import draw
from workloads.spec import SharedPrefixSource
from workloads.traffic import Conversation, Prompt


class SharedPrefixTraffic:
    """Prompt i belongs to group i modulo the number of groups."""

    def __init__(self, source: SharedPrefixSource) -> None:
        self._source = source
        self._shared = shared_len(source.input_len, source.shared_ratio)

    def conversations(self, seed: int, count: int, *, first: int = 0) -> list[Conversation]:
        """Prefix of the group, then ids of the prompt's own."""
        prefixes = [self._prefix(seed, group) for group in range(self._source.groups)]
        return [Conversation(turns=[self._prompt(seed, i, prefixes)]) for i in range(first, first + count)]

    def prefixes(self, seed: int) -> list[Prompt]:
        """Each group's prefix alone: a recurrent state is kept where a prompt ends, so it must end here."""
        if not self._shared:
            return []
        return [
            Prompt(
                token_ids=self._prefix(seed, group),
                input_tokens=self._shared,
                output_tokens=1,
                shared_tokens=self._shared,
                group=group,
            )
            for group in range(self._source.groups)
        ]

    def _prompt(self, seed: int, index: int, prefixes: list[np.ndarray]) -> Prompt:
        s = self._source
        group = index % s.groups
        own = draw(seed, ("own", index), s.input_len - self._shared, s.vocab_low, s.vocab_high)
        return Prompt(
            token_ids=np.concatenate([prefixes[group], own]),
            input_tokens=s.input_len,
            output_tokens=s.output_len,
            shared_tokens=self._shared,
            group=group,
        )

    def _prefix(self, seed: int, group: int) -> np.ndarray:
        return draw(seed, ("prefix", group), self._shared, self._source.vocab_low, self._source.vocab_high)


def shared_len(input_len: int, shared_ratio: float) -> int:
    """Tokens that the prompts of a group share: 65,536 at 99.9 % is 65,470."""
    return round(input_len * shared_ratio)


def reusable_len(shared: int, granularity: int) -> int:
    """What a cache that reuses multiples of `granularity` can hit: 65,470 is 65,408 at 64 and 65,280 at 256."""
    return shared // granularity * granularity
