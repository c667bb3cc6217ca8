"""The delta rule in chunks of 64 tokens (CPU), counted from a request's first row of this pass.

Passes that start at multiples of 64 tokens therefore cut a prompt in the same chunks, and give the same bits. With
G the running sum of g inside a chunk and S the state before it:

    L[i, j] = beta_i k_i . (k_j exp(G_i - G_j))  below the diagonal;   A[i, j] = q_i . (k_j exp(G_i - G_j))  up to it
    [W | U] = (I + L)^-1 [beta k exp(G) | beta v];   V = U - W S
    O = (q exp(G)) S + A V;   S' = exp(G_end) S + (k exp(G_end - G))' V

exp(G_i - G_j) is split at the start of i's sub-chunk of 16 tokens: with g > -5 no factor leaves FP32's range.

B chunks times heads, C = 64 rows of a chunk, D = K = V widths, H heads.
"""

import torch
from torch import Tensor

from stack.kernels.delta_rule import log_decay, row_sigmoid

CHUNK = 64
_SUB = 16
_GROUP = 4
"""Chunks that are prepared together: with 4 heads their temporaries are 0.5 MiB each."""


def missing(device: str) -> str | None:
    """Its tables are made on the CPU."""
    return None if device == "cpu" else "it is written for the CPU"


def kda_chunk(
    q_THD: Tensor,
    k_THD: Tensor,
    v_THD: Tensor,
    f_THD: Tensor,
    b_TH: Tensor,
    A_log_H: Tensor,
    dt_bias_HD: Tensor,
    state_SHKV: Tensor,
    slot_R: Tensor,
    start_R1: Tensor,
    has_state_R: Tensor,
    *,
    lower_bound: float,
    extend_lens: tuple[int, ...],
) -> Tensor:
    """Outputs [T, H, D] in v's dtype; the states of live slots advance by their requests' rows."""
    g_THD, beta_TH = log_decay(f_THD, A_log_H, dt_bias_HD, lower_bound), row_sigmoid(b_TH)
    o_THD = torch.zeros_like(v_THD, memory_format=torch.contiguous_format)
    begin = 0
    for slot, resumes, length in zip(slot_R.tolist(), has_state_R.tolist(), extend_lens, strict=False):
        rows = slice(begin, begin + length)
        begin += length
        if slot == 0 or length == 0:
            continue
        state_HKV = state_SHKV[slot].float() if resumes else torch.zeros_like(state_SHKV[slot], dtype=torch.float32)
        inputs = [_chunks(x[rows].float()) for x in (q_THD, k_THD, v_THD, g_THD, beta_TH[..., None])]
        o_NCHD = torch.cat(
            [_advance(state_HKV, *group) for group in zip(*(x.split(_GROUP) for x in inputs), strict=True)]
        )
        o_THD[rows] = o_NCHD.flatten(0, 1)[:length].to(o_THD.dtype)
        state_SHKV[slot] = state_HKV.to(state_SHKV.dtype)
    return o_THD


def _chunks(x_THD: Tensor) -> Tensor:
    missing = -x_THD.shape[0] % CHUNK
    if missing:
        x_THD = torch.cat((x_THD, x_THD.new_zeros(missing, *x_THD.shape[1:])))
    return x_THD.view(-1, CHUNK, *x_THD.shape[1:]).transpose(1, 2)


def _advance(state_HKV: Tensor, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor:
    heads = q.shape[1]
    q, k, v, g, beta = (x.flatten(0, 1) for x in (q, k, v, g, beta))
    cumulative_BCD = g.cumsum(1)
    base_BSD = torch.cat((torch.zeros_like(g[:, :1]), cumulative_BCD[:, _SUB - 1 :: _SUB]), 1)
    decay_BCD = (cumulative_BCD - base_BSD[:, :-1].repeat_interleave(_SUB, 1)).exp_()
    rows = torch.stack((k * beta * decay_BCD, q * decay_BCD), 1)
    attention_B2CC, end_keys_BCD = _scores(rows, k, cumulative_BCD, base_BSD)
    rows_B2CD = (rows.unflatten(2, (-1, _SUB)) * base_BSD[:, None, :-1, None].exp()).flatten(2, 3)
    solved = _solve(attention_B2CC[:, 0], torch.cat((rows_B2CD[:, 0], v * beta), -1))
    width = q.shape[-1]
    readers_B2CD = torch.cat((solved[..., :width], rows_B2CD[:, 1]), 1)
    end_decay_BD1 = base_BSD[:, -1, :, None].exp()
    outputs = []
    per_chunk = (readers_B2CD, solved[..., width:], attention_B2CC[:, 1], end_keys_BCD, end_decay_BD1)
    for readers, u, attention, keys, decay in zip(*(x.split(heads) for x in per_chunk), strict=True):
        seen = torch.bmm(readers, state_HKV)
        fresh = u - seen[:, :CHUNK]
        outputs.append(torch.baddbmm(seen[:, CHUNK:], attention, fresh))
        state_HKV.mul_(decay).baddbmm_(keys.transpose(1, 2), fresh)
    return torch.stack(outputs).transpose(1, 2)


def _scores(rows_B2CD: Tensor, k_BCD: Tensor, cumulative_BCD: Tensor, base_BSD: Tensor) -> tuple[Tensor, Tensor]:
    batch = k_BCD.shape[0]
    scores = rows_B2CD.new_zeros(batch, 2, CHUNK, CHUNK)
    for sub in range(CHUNK // _SUB):
        own, end = slice(sub * _SUB, (sub + 1) * _SUB), (sub + 1) * _SUB
        keys = (base_BSD[:, sub, None] - cumulative_BCD[:, :end]).exp_().mul_(k_BCD[:, :end])
        product = torch.bmm(rows_B2CD[:, :, own].flatten(1, 2), keys.transpose(1, 2))
        scores[:, :, own, :end] = product.view(batch, 2, _SUB, end)
    scores[:, 0].tril_(-1)
    scores[:, 1].tril_()
    return scores, (base_BSD[:, -1, None] - cumulative_BCD).exp_().mul_(k_BCD)


def _solve(lower_BCC: Tensor, right_BCX: Tensor) -> Tensor:
    """(I + L)^-1 applied to the right side, 16 rows at a time."""
    inverse = _inverse_of_diagonal(lower_BCC)
    solved = torch.empty_like(right_BCX)
    for sub in range(CHUNK // _SUB):
        own, before = slice(sub * _SUB, (sub + 1) * _SUB), slice(0, sub * _SUB)
        rest = right_BCX[:, own]
        if sub:
            rest = torch.baddbmm(rest, lower_BCC[:, own, before], solved[:, before], alpha=-1)
        solved[:, own] = torch.bmm(inverse[:, sub], rest)
    return solved


def _inverse_of_diagonal(lower_BCC: Tensor) -> Tensor:
    """Inverses of the 16 x 16 diagonal blocks of I + L: (I - L)(I + L^2)(I + L^4)(I + L^8), as L^16 = 0."""
    blocks = lower_BCC.unflatten(1, (-1, _SUB)).unflatten(3, (-1, _SUB)).diagonal(dim1=1, dim2=3).permute(0, 3, 1, 2)
    power = blocks.reshape(-1, _SUB, _SUB)
    inverse = torch.eye(_SUB, device=power.device) - power
    for _ in range(3):
        power = torch.bmm(power, power)
        inverse = torch.baddbmm(inverse, inverse, power)
    return inverse.view(blocks.shape)
