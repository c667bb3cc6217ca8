"""Prompts of random token ids that share nothing; every prompt has exactly the same length."""

import numpy as np

from workloads.spec import RandomSource
from workloads.traffic import Conversation, Prompt


class RandomTraffic:
    """Ids are uniform in [vocab_low, vocab_high)."""

    def __init__(self, source: RandomSource) -> None:
        self._source = source

    def conversations(self, seed: int, count: int, *, first: int = 0) -> list[Conversation]:
        """Prompt i depends on the seed and i alone."""
        s = self._source
        return [
            Conversation(
                turns=[
                    Prompt(
                        token_ids=draw(seed, ("prompt", i), s.input_len, s.vocab_low, s.vocab_high),
                        input_tokens=s.input_len,
                        output_tokens=s.output_len,
                        shared_tokens=0,
                    )
                ]
            )
            for i in range(first, first + count)
        ]

    def prefixes(self, seed: int) -> list[Prompt]:
        """Nothing is shared."""
        return []


def draw(seed: int, name: tuple[str, int], count: int, low: int, high: int) -> np.ndarray:
    """`count` token ids (int32) that depend on `seed` and `name` alone."""
    stream = int.from_bytes(name[0].encode()) % 2**32
    return np.random.default_rng([seed, stream, name[1]]).integers(low, high, size=count, dtype=np.int32)
