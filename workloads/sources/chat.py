"""Multi-turn conversations: a system prompt that all share, then user turns; each turn carries all that went before.

A prompt's shared tokens are what an earlier prompt held: the system prompt, then the conversation's last prompt. With
scripted replies the next turn quotes an answer known beforehand, so every length is exact by construction. With
actual replies the client quotes what the server said, and only the server knows the length.
"""

import numpy as np

from workloads.sources.random import draw
from workloads.spec import ChatSource
from workloads.traffic import Conversation, Prompt


class ChatTraffic:
    """Conversation i has its own users and replies; the system prompt depends on the seed alone."""

    def __init__(self, source: ChatSource) -> None:
        self._source = source

    def conversations(self, seed: int, count: int, *, first: int = 0) -> list[Conversation]:
        """Each has `turns` prompts."""
        return [Conversation(turns=self._turns(seed, i)) for i in range(first, first + count)]

    def prefixes(self, seed: int) -> list[Prompt]:
        """The system prompt."""
        system = self._draw(seed, "system", 0, self._source.system_len)
        return [Prompt(token_ids=system, input_tokens=len(system), output_tokens=1, shared_tokens=len(system), group=0)]

    def _turns(self, seed: int, conversation: int) -> list[Prompt]:
        s = self._source
        said = self._draw(seed, "system", 0, s.system_len)
        computed = len(said)
        is_scripted = s.reply == "scripted"
        turns = []
        for turn in range(s.turns):
            user = self._draw(seed, "user", conversation * s.turns + turn, s.user_len)
            ids = np.concatenate([said, user]) if is_scripted or turn == 0 else user
            turns.append(
                Prompt(
                    token_ids=ids,
                    input_tokens=len(ids) if is_scripted or turn == 0 else None,
                    output_tokens=s.reply_len,
                    shared_tokens=computed if is_scripted or turn == 0 else None,
                    group=0,
                    quotes_answer=not is_scripted and turn > 0,
                )
            )
            if is_scripted:
                computed = len(ids)
                said = np.concatenate([ids, self._draw(seed, "reply", conversation * s.turns + turn, s.reply_len)])
        return turns

    def _draw(self, seed: int, what: str, index: int, count: int) -> np.ndarray:
        return draw(seed, (what, index), count, self._source.vocab_low, self._source.vocab_high)
