"""Replayed and copied states are those of plain decoding: bit for bit in FP32, within a stated drift in BF16."""

import functools
from dataclasses import dataclass, fields

import pytest
import torch

from stack.core.memory import ReplayRing
from stack.kernels.catalog import OPS
from tests.support.drafts import known_text, watch_drafts
from tests.support.local_pair import single

H, D, W = 2, 128, 8
DRIFT = {"plain": 1e-2, "replay": 1e-2, "snapshot": 1e-2}
"""Largest distance of a BF16 state from the FP32 one, as a share of its norm; see docs/measurements/speculation.md."""


@dataclass(frozen=True)
class Inputs:
    """A token stream of one layer. Decay biases around -2 let a state remember some tens of tokens."""

    x_TX: torch.Tensor
    f_THD: torch.Tensor
    b_TH: torch.Tensor
    weight_X4: torch.Tensor
    A_log_H: torch.Tensor
    dt_bias_HD: torch.Tensor

    def rows(self, start, end):
        return self.x_TX[start:end], self.f_THD[start:end], self.b_TH[start:end]

    @property
    def weights(self):
        return self.weight_X4, self.A_log_H, self.dt_bias_HD


def inputs(count):
    draw = torch.Generator().manual_seed(21)

    def normal(*shape, std=1.0):
        return std * torch.randn(*shape, generator=draw)

    return Inputs(
        normal(count + W, 3 * H * D),
        normal(count + W, H, D),
        normal(count + W, H),
        normal(3 * H * D, 4, std=0.5),
        2 * torch.rand(H, generator=draw) - 1,
        normal(H, D) - 2.0,
    )


def empty(state_dtype):
    return torch.zeros(2, H, 1, D, D, dtype=state_dtype), torch.zeros(2, H, 1, 3, D, 3)


@functools.cache
def plain_states(count, state_dtype):
    given = inputs(count)
    decode = OPS["kda_decode"].bind("auto", "cpu")
    state, window = empty(state_dtype)
    slot = torch.tensor([1], dtype=torch.int32)
    for t in range(count):
        decode(*given.rows(t, t + 1), *given.weights, state[:, :, 0], window[:, :, 0], slot, lower_bound=-5.0)
    return state[1], window[1]


def speculated_states(count, state_dtype, commit):
    """`count` tokens in verifies of W rows, of which 1 .. W stay in turn; rejected rows hold other tokens."""
    given = inputs(count)
    verify, fold = OPS["kda_verify"].bind("auto", "cpu"), OPS["kda_commit"].bind("auto", "cpu")
    state, window = empty(state_dtype)
    one = torch.tensor([1], dtype=torch.int32)
    lead = (1, 2, W, H)
    ring = ReplayRing(
        k_NWHD=torch.zeros(*lead, D),
        v_NWHD=torch.zeros(*lead, D),
        g_NWHD=torch.zeros(*lead, D),
        beta_NWH=torch.zeros(*lead),
        x_NWX=torch.zeros(1, 2, W, 3 * H * D),
    )
    layer = ReplayRing(**{part.name: getattr(ring, part.name)[0] for part in fields(ring)})
    snapshots = torch.zeros(*lead, D, D, dtype=state_dtype) if commit == "snapshot" else None
    done = turn = 0
    while done < count:
        kept = min(1 + turn * 3 % W, count - done)
        rows = [part.clone() for part in given.rows(done, done + W)]
        for part in rows:
            part[kept:] = part[kept:].flip(0) + 1.0
        verify(
            *rows,
            *given.weights,
            state[:, :, 0],
            window[:, :, 0],
            one,
            one,
            layer,
            width=W,
            lower_bound=-5.0,
            snapshots_NWHKV=None if snapshots is None else snapshots[0],
        )
        fold(state, window, ring, one, one, torch.tensor([kept], dtype=torch.int32), snapshots_LNWHKV=snapshots)
        done, turn = done + kept, turn + 1
    return state[1], window[1]


LENGTHS = [200, pytest.param(10_000, marks=[pytest.mark.nightly, pytest.mark.timeout(3600)])]


@pytest.mark.parametrize("count", LENGTHS)
@pytest.mark.parametrize("commit", ["replay", "snapshot"])
def test_fp32_states_are_those_of_stepping_bit_for_bit(count, commit):
    for found, wanted in zip(
        speculated_states(count, torch.float32, commit), plain_states(count, torch.float32), strict=True
    ):
        assert torch.equal(found, wanted)
        assert wanted.any()


@pytest.mark.parametrize("count", LENGTHS)
def test_bf16_states_stay_within_the_stated_drift(count):
    exact = plain_states(count, torch.float32)[0]
    states = {commit: speculated_states(count, torch.bfloat16, commit)[0] for commit in ("replay", "snapshot")}
    states |= {"plain": plain_states(count, torch.bfloat16)[0]}
    drift = {name: float((state.float() - exact).norm() / exact.norm()) for name, state in states.items()}
    print(f"drift of BF16 states after {count} tokens:", {name: f"{value:.2e}" for name, value in drift.items()})
    assert all(1e-5 < drift[name] <= DRIFT[name] for name in DRIFT), drift


@pytest.mark.slow
@pytest.mark.parametrize("method", ["dflash2", "mtp718"])
def test_the_models_states_after_many_tokens_are_plain_decodings(method, exact, prompts, greedy, monkeypatch):
    """All layers of the whole model, with drafts that are partly right: 200 tokens in one go."""
    count, prompt = 200, prompts[1]
    more = {"scheduler.overlap": False, "cache.expected_output": 256}
    with single(exact(**more)) as one:
        one.decode.instance.states.buffer.zero_()
        [(wanted, _)] = one.run([prompt], greedy(1, new=count))
        plain = _slot(one)
    watch_drafts(monkeypatch, known_text([prompt], [wanted]))
    with single(exact(method, **more)) as one:
        one.decode.instance.states.buffer.zero_()
        [(found, last)] = one.run([prompt], greedy(1, new=count))
        speculated = _slot(one)
    assert found == wanted
    assert last.num_verify < count // 2
    for before, after in zip(plain, speculated, strict=True):
        assert torch.equal(before, after)
        assert before.any()


def _slot(one):
    """Recurrent states and windows of the only request since the pool was zeroed; it left its slot as it was."""
    memory = one.decode.instance.runner._decode._memory
    used = [s for s in range(1, memory.state_SHLKV.shape[0]) if memory.state_SHLKV[s].any()]
    assert len(used) == 1
    return memory.state_SHLKV[used[0]].clone(), memory.conv_SHLCDW[used[0]].clone()
