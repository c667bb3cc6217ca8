"""The gated delta rule in chunks of 32 tokens, differentiable, in FP32.

With G the running sum of g inside a chunk and S the state before it:

    L[i, j] = beta_i k_i . (k_j exp(G_i - G_j))  below the diagonal;   A[i, j] = q_i . (k_j exp(G_i - G_j))  up to it
    [W | U] = (I + L)^-1 [beta k exp(G) | beta v];   V = U - W S
    O = (q exp(G)) S + A V;   S' = exp(G_end) S + (k exp(G_end - G))' V

exp(G_i - G_j) is split at the middle of the chunk: with g > -5 and 16 tokens to either side no factor that is used
leaves FP32's range; entries above the diagonal may, and are dropped.

B sequences, T tokens, H heads, D width, N chunks, C = 32 rows of a chunk.
"""

import torch
from torch import Tensor
from torch.nn import functional

CHUNK = 32
_HALF = CHUNK // 2


def delta_rule(q_BTHD: Tensor, k_BTHD: Tensor, v_BTHD: Tensor, g_BTHD: Tensor, beta_BTH: Tensor) -> Tensor:
    """Outputs [B, T, H, D] of sequences that begin with an empty state. All FP32; q and k normalised."""
    length = q_BTHD.shape[1]
    q, k, v, g, beta = (_chunks(x) for x in (q_BTHD, k_BTHD, v_BTHD, g_BTHD, beta_BTH[..., None]))
    total = g.cumsum(-2)
    middle, decay, end = total[..., _HALF - 1 : _HALF, :], total.exp(), total[..., -1:, :]
    rise, fall = (total - middle).exp(), (middle - total).exp()
    keys = (k * fall).transpose(-1, -2)
    lower = (beta * (k * rise) @ keys).tril(-1)
    within = ((q * rise) @ keys).tril()
    solved = _inverse(lower) @ torch.cat((beta * k * decay, beta * v), -1)
    w, u = solved.split(q.shape[-1], -1)
    per_chunk = (w, u, q * decay, within, (k * (end - total).exp()).transpose(-1, -2), end.exp().transpose(-1, -2))
    state, outputs = torch.zeros_like(q[:, :, 0, :1].transpose(-1, -2) @ v[:, :, 0, :1]), []
    for w_n, u_n, q_n, within_n, keys_n, decay_n in zip(*(x.unbind(2) for x in per_chunk), strict=True):
        fresh = u_n - w_n @ state
        outputs.append(q_n @ state + within_n @ fresh)
        state = decay_n * state + keys_n @ fresh
    return torch.stack(outputs, 2).flatten(2, 3).transpose(1, 2)[:, :length]


def _chunks(x_BTHD: Tensor) -> Tensor:
    """[B, H, N, C, D], zeros behind the end."""
    x_BTHD = functional.pad(x_BTHD, (0, 0, 0, 0, 0, -x_BTHD.shape[1] % CHUNK))
    return x_BTHD.transpose(1, 2).unflatten(2, (-1, CHUNK))


def _inverse(lower: Tensor) -> Tensor:
    """(I + L)^-1 of strictly lower L: halves by powers, as their 16th power is zero, then the corner between them."""
    top, corner, bottom = lower[..., :_HALF, :_HALF], lower[..., _HALF:, :_HALF], lower[..., _HALF:, _HALF:]
    power = torch.stack((top, bottom), 0)
    inverse = torch.eye(_HALF, device=lower.device, dtype=lower.dtype) - power
    for _ in range(3):
        power = power @ power
        inverse = inverse + inverse @ power
    first, second = inverse
    left = torch.cat((first, -second @ corner @ first), -2)
    right = torch.cat((torch.zeros_like(second), second), -2)
    return torch.cat((left, right), -1)
