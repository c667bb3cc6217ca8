"""The dispatch rule of prefill: FlashKDA where requests fill the device, segments where one long request would leave
it idle.

FlashKDA gives each sequence and head one block; its time follows the longest request, that of `split_chunk` the sum.
On one H200, 32,768 tokens of 16 heads: one request 3,646 against 2,017 us, eight equal ones 897 / 1,642.
"""

from typing import TYPE_CHECKING

from stack.kernels.kda_chunk import flash_kda, split_chunk

if TYPE_CHECKING:
    from torch import Tensor

LONGEST_SHARE = 1 / 3
"""Largest share of a pass's tokens that one request may have for FlashKDA to be the faster."""


def missing(device: str) -> str | None:
    """Needs what both need."""
    return split_chunk.missing(device) or flash_kda.missing(device)


def kda_chunk(
    q_THD: "Tensor",
    k_THD: "Tensor",
    v_THD: "Tensor",
    f_THD: "Tensor",
    b_TH: "Tensor",
    A_log_H: "Tensor",
    dt_bias_HD: "Tensor",
    state_SHKV: "Tensor",
    slot_R: "Tensor",
    start_R1: "Tensor",
    has_state_R: "Tensor",
    *,
    lower_bound: float,
    extend_lens: tuple[int, ...],
) -> "Tensor":
    """See the op's contract."""
    shared = max(extend_lens, default=0) <= sum(extend_lens) * LONGEST_SHARE
    rows = (q_THD, k_THD, v_THD, f_THD, b_TH, A_log_H, dt_bias_HD)
    memory = (state_SHKV, slot_R, start_R1, has_state_R)
    chosen = flash_kda.kda_chunk if shared else split_chunk.kda_chunk
    return chosen(*rows, *memory, lower_bound=lower_bound, extend_lens=extend_lens)
