"""How one request's next tokens are chosen. Knows no tensors and no HTTP.

`top_k` of 1 or a temperature of 0 is greedy: the lowest id among the largest logits. A request's draws depend on its
seed and the token's position alone, so they do not change with the batch, the worker or the speculation method.
"""

import msgspec

from stack.core.errors import RequestError


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """What a client may ask of sampling and stopping; `check` turns nonsense into one sentence."""

    max_new_tokens: int = 128
    """Upper bound of generated tokens. 0 is legal: the prompt is computed and nothing is generated."""
    min_new_tokens: int = 0
    """End tokens and stop strings are ignored before this many tokens."""
    temperature: float = 1.0
    """0 is greedy."""
    top_p: float = 1.0
    """Smallest set of tokens whose probability reaches this, after `top_k`."""
    top_k: int = -1
    """Keep this many tokens; -1 keeps all."""
    min_p: float = 0.0
    """Drop tokens below this fraction of the largest probability."""
    seed: int = 0
    """64-bit seed of the request's own random stream."""
    stop: tuple[str, ...] = ()
    """Strings that end the text; they are cut from it."""
    stop_token_ids: tuple[int, ...] = ()
    """Further end tokens."""
    ignore_eos: bool = False
    """Do not stop at the model's end tokens."""
    skip_special_tokens: bool = True
    """Leave special tokens out of the text."""

    @property
    def is_greedy(self) -> bool:
        """Whether the next token is the arg max."""
        return self.temperature == 0.0 or self.top_k == 1

    def check(self, vocab_size: int) -> None:
        """Raise `RequestError` for the first value out of range."""
        rules = (
            (self.max_new_tokens >= 0, "max_new_tokens must be 0 or more"),
            (0 <= self.min_new_tokens <= self.max_new_tokens, "min_new_tokens must lie between 0 and max_new_tokens"),
            (0.0 <= self.temperature <= 100.0, "temperature must lie between 0 and 100"),
            (0.0 < self.top_p <= 1.0, "top_p must be above 0 and at most 1"),
            (self.top_k == -1 or self.top_k >= 1, "top_k must be -1 (all) or at least 1"),
            (0.0 <= self.min_p <= 1.0, "min_p must lie between 0 and 1"),
            (all(0 <= t < vocab_size for t in self.stop_token_ids), f"stop_token_ids must be below {vocab_size}"),
            (len(self.stop) <= 64 and all(self.stop), "stop takes at most 64 non-empty strings"),
        )
        for holds, message in rules:
            if not holds:
                raise RequestError(message)
