"""A model whose next token depends on every page and state of its request, exactly, so that a misplaced byte shows.

Each token is written to its latent row; its running sum and its count are kept in the recurrent state. The next token
mixes what is read back through the page table with what the state holds. `expected_tokens` says in plain Python what
must come out.
"""

import time

import torch

from stack.core.forward import ForwardContext
from stack.core.memory import ModelMemory


class LedgerHidden:
    def __init__(self, last_TC):
        self.last_TC = last_TC
        self.tap_TF = None


class LedgerModel:
    """Stands in for the target model. `delay_s` is slept at the start of each forward."""

    def __init__(self, vocab_size: int, page_size: int) -> None:
        self.vocab_size = vocab_size
        self.page_size = page_size
        self.delay_s = 0.0
        self.largest_rows = 0
        self.largest_decode = 0
        self.impls = {"ledger": "tests"}

    def forward(self, token_T, ctx: ForwardContext, memory: ModelMemory, *, taps=()):
        time.sleep(self.delay_s)
        self.largest_rows = max(self.largest_rows, ctx.num_rows)
        if ctx.kind == "decode":
            self.largest_decode = max(self.largest_decode, ctx.num_rows)
        latent_NPL = memory.paged[0].latent_NPL
        state_SK = memory.state_SHLKV[:, 0, 0, 0]
        value_T1 = torch.zeros(ctx.num_rows, 1)
        for row in range(ctx.num_rows):
            request = int(ctx.request_T[row])
            slot, position = int(ctx.slot_R[request]), int(ctx.position_T[row])
            if slot == 0:
                assert int(ctx.write_T[row]) == 0
                continue
            assert position < ctx.max_context, "a row lies beyond the plan's bound"
            if position == 0:
                state_SK[slot, :2] = 0
            write = int(ctx.write_T[row])
            assert write >= self.page_size, "a live row writes into the sink"
            latent_NPL[write // self.page_size, write % self.page_size, 0] = float(token_T[row])
            state_SK[slot, 0] = (state_SK[slot, 0] * 3 + float(token_T[row])) % 1009
            state_SK[slot, 1] += 1
            assert int(state_SK[slot, 1]) == position + 1, "the state is not that of the tokens before"
            pages = ctx.page_table_SP[slot, : position // self.page_size + 1].long()
            context = latent_NPL[pages, :, 0].reshape(-1)[: position + 1]
            weight = torch.arange(position + 1) % 7 + 1
            value_T1[row] = float((context * weight).sum() % 10007) + state_SK[slot, 0]
        return LedgerHidden(value_T1)

    def logits(self, hidden_RC):
        target_R1 = hidden_RC % self.vocab_size
        return -(torch.arange(self.vocab_size)[None] - target_R1).abs()


def expected_tokens(prompt: list[int], count: int, vocab_size: int) -> list[int]:
    """Greedy continuation of `prompt`."""
    tokens, state = [], 0
    mixed = 0
    for position, token in enumerate(prompt):
        state = (state * 3 + token) % 1009
        mixed += token * (position % 7 + 1)
    position = len(prompt)
    for _ in range(count):
        token = (mixed % 10007 + state) % vocab_size
        tokens.append(token)
        state = (state * 3 + token) % 1009
        mixed += token * (position % 7 + 1)
        position += 1
    return tokens
