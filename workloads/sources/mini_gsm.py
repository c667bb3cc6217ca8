"""Questions of our own corpus as traffic: held-out stories behind worked examples, and needles among like lines.

Both are made, never read: the same questions on every machine. Their answers are known, so both can be scored.
"""

from itertools import islice

from workloads.corpus import retrieval_items, stories
from workloads.sources.gsm8k import few_shot_prefix, question_prompt
from workloads.spec import MiniGsmSource, RetrievalSource
from workloads.traffic import Conversation, Item, Prompt

_SEED = "0"


class MiniGsmTraffic:
    """Conversation i is story i after the examples, which are held-out stories too; again from the start at the end."""

    def __init__(self, source: MiniGsmSource) -> None:
        told = islice(stories(_SEED, "held_out"), source.shots + source.items)
        every = [Item(i, story.question, story.answer) for i, story in enumerate(told)]
        self._shots = few_shot_prefix(every, source.shots)
        self._output_len = source.output_len
        self.items = every[source.shots :]

    def conversations(self, seed: int, count: int, *, first: int = 0) -> list[Conversation]:
        """Prompts as text; `seed` changes nothing."""
        asked = (self.items[i % len(self.items)] for i in range(first, first + count))
        return [_conversation(self._shots + question_prompt(item), self._output_len) for item in asked]

    def prefixes(self, seed: int) -> list[Prompt]:
        """Nothing to prime: the length of the examples in tokens is the server's to say."""
        return []


class RetrievalTraffic:
    """Conversation i is item i, shallow needles first; an item's question is its whole text."""

    def __init__(self, source: RetrievalSource) -> None:
        found = [
            item for depth in source.lines_behind for item in retrieval_items(_SEED, depth, source.items_per_depth)
        ]
        self._output_len = source.output_len
        self.items = [Item(i, item.prompt, item.answer) for i, item in enumerate(found)]

    def conversations(self, seed: int, count: int, *, first: int = 0) -> list[Conversation]:
        """Prompts as text; `seed` changes nothing."""
        asked = (self.items[i % len(self.items)] for i in range(first, first + count))
        return [_conversation(item.question, self._output_len) for item in asked]

    def prefixes(self, seed: int) -> list[Prompt]:
        """Nothing is shared."""
        return []


def _conversation(text: str, output_tokens: int) -> Conversation:
    return Conversation(turns=[Prompt(text=text, output_tokens=output_tokens, group=0)])
