"""Philox-4x32-10 on tensors: uniform numbers that depend on a key and a counter alone, alike on every device.

32-bit words live in int64; a product of two of them wraps, which keeps all 64 bits.
"""

import torch
from torch import Tensor

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_MASK = 0xFFFFFFFF
_ROUNDS = 10


def philox(counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
    """Four random words for each counter; all are int64 tensors that hold 32-bit words."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        a, b = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = ((b >> 32) & _MASK) ^ c1 ^ k0, b & _MASK, ((a >> 32) & _MASK) ^ c3 ^ k1, a & _MASK
        k0, k1 = (k0 + _WEYL[0]) & _MASK, (k1 + _WEYL[1]) & _MASK
    return c0, c1, c2, c3


def uniforms(seed_T: Tensor, position_T: Tensor, stream: int) -> Tensor:
    """FP32 in [0, 1) for each 64-bit seed and position; `stream` separates the uses of one position."""
    seed, position = seed_T.long(), position_T.long()
    counter = (
        position & _MASK,
        (position >> 32) & _MASK,
        torch.full_like(position, stream),
        torch.zeros_like(position),
    )
    word = philox(counter, (seed & _MASK, (seed >> 32) & _MASK))[0]
    return (word >> 8).float() * 2.0**-24
