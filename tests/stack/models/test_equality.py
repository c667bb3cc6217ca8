"""The target model equals transformers' `glm5_next` on the same checkpoint."""

import dataclasses

import pytest
import torch
from torch import Tensor

from stack.kernels import BoundOp
from stack.layers import bind_ops
from stack.models import TargetModel, load_model, model_geometry, open_weights
from tests.support.checkpoints import WITHOUT_CHOICES, dequantized, variant
from tests.support.glm_reference import GlmReference
from tests.support.target_session import TargetSession, engine_config

BFLOAT16 = {"model.compute_dtype": "bfloat16", "cache.kv_dtype": "bfloat16", "cache.conv_dtype": "bfloat16"}
LENGTHS = (1, 3, 4, 5, 63, 64, 65, 257, 1025)
RELATIVE = 1e-4
"""Largest logit difference over the root mean square of the judge's logits, in FP32."""


@pytest.fixture(scope="module")
def judge(tiny_fp32) -> GlmReference:
    return GlmReference(tiny_fp32)


@pytest.fixture(scope="module")
def model(tiny_fp32) -> TargetModel:
    return load_model(engine_config(tiny_fp32), "cpu")


@pytest.fixture(scope="module")
def wanted(judge) -> dict[int, tuple[list[int], Tensor]]:
    prompts = {length: prompt(length, seed=length) for length in LENGTHS}
    return {length: (tokens, judge.logits(tokens)) for length, tokens in prompts.items()}


def prompt(length: int, seed: int) -> list[int]:
    return torch.randint(2, 1000, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def in_chunks(session: TargetSession, tokens: list[int], size: int) -> Tensor:
    chunks = [tokens[begin : begin + size] for begin in range(0, len(tokens), size)]
    return torch.cat([session.logits(session.prefill({0: chunk})) for chunk in chunks])


def token_by_token(session: TargetSession, tokens: list[int]) -> Tensor:
    first = session.logits(session.prefill({0: tokens[:1]}))
    return torch.cat([first, *(session.logits(session.decode({0: token})) for token in tokens[1:])])


def assert_equal_logits(got: Tensor, want: Tensor) -> None:
    assert ((got - want).abs().max() / want.square().mean().sqrt()).item() <= RELATIVE
    assert torch.equal(got.argmax(-1), want.argmax(-1))


@pytest.mark.parametrize("length", LENGTHS)
def test_one_pass_gives_the_logits_of_transformers(tiny_fp32, model, wanted, length):
    tokens, want = wanted[length]
    session = TargetSession(engine_config(tiny_fp32), model=model)
    assert_equal_logits(in_chunks(session, tokens, length), want)


@pytest.mark.parametrize("length", [5, 65, 257])
@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 17, 63, 64, 65, 100])
def test_awkward_chunks_give_the_logits_of_transformers(tiny_fp32, model, wanted, length, size):
    if size >= length or length / size > 90:
        pytest.skip("the chunk is the prompt, or a test of its own")
    tokens, want = wanted[length]
    assert_equal_logits(in_chunks(TargetSession(engine_config(tiny_fp32), model=model), tokens, size), want)


@pytest.mark.parametrize("length", [3, 65, 257])
def test_token_by_token_gives_the_logits_of_transformers(tiny_fp32, model, wanted, length):
    tokens, want = wanted[length]
    assert_equal_logits(token_by_token(TargetSession(engine_config(tiny_fp32), model=model), tokens), want)


def test_the_reference_implementations_give_the_logits_of_transformers(tiny_fp32, judge):
    kernels = {f"kernels.{name}": "reference" for name in bind_ops(engine_config(tiny_fp32).kernels, "cpu").impls}
    session, tokens = TargetSession(engine_config(tiny_fp32, kernels), max_tokens=128), prompt(72, seed=6)
    got = torch.cat(
        (in_chunks(session, tokens[:70], 70), *(session.logits(session.decode({0: t})) for t in tokens[70:]))
    )
    assert set(session.model.impls.values()) == {"reference"}
    assert_equal_logits(got, judge.logits(tokens))


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 17, 63, 64, 65, 256, 1024])
def test_a_long_prompt_in_awkward_chunks_gives_the_logits_of_transformers(tiny_fp32, model, wanted, size):
    tokens, want = wanted[1025]
    session = TargetSession(engine_config(tiny_fp32), model=model)
    got = token_by_token(session, tokens) if size == 1 else in_chunks(session, tokens, size)
    assert_equal_logits(got, want)


class ForcedSelection:
    """Stands where the bound selection stands and returns given index sets, one a sparse layer, in turn."""

    name, impl = "index_select", "forced"

    def __init__(self) -> None:
        self.sets: list[Tensor] = []

    def __call__(self, *args, **kwargs) -> Tensor:
        return self.sets.pop(0)


class WatchedSelection:
    """The bound selection, with a copy of everything that it chose."""

    def __init__(self, inner: BoundOp) -> None:
        self.name, self.impl, self._inner = inner.name, inner.impl, inner
        self.chosen: list[Tensor] = []

    def __call__(self, *args, **kwargs) -> Tensor:
        self.chosen.append(self._inner(*args, **kwargs))
        return self.chosen[-1]


def model_with_selection(config, selection) -> TargetModel:
    ops = dataclasses.replace(bind_ops(config.kernels, "cpu"), index_select=selection)
    return TargetModel(model_geometry(config), ops, open_weights(config, "cpu"))


def positions_of(index_TW: Tensor, session: TargetSession) -> list[set[int]]:
    """Token slots of request 0 turned back into positions."""
    pages = {page: number for number, page in enumerate(session.page_table_SP[1].tolist())}
    size = session.page_size
    return [{pages[slot // size] * size + slot % size for slot in row if slot >= 0} for row in index_TW.tolist()]


def slots_of(position_TW: Tensor, session: TargetSession) -> Tensor:
    """The judge's positions as token slots of request 0, valid ones first."""
    position_TW = position_TW.sort(dim=1, descending=True).values.long()
    page_TW = session.page_table_SP[1].long()[position_TW.clamp(min=0) // session.page_size]
    slot_TW = page_TW * session.page_size + position_TW % session.page_size
    return torch.where(position_TW >= 0, slot_TW, -1).int()


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_beyond_the_budget_the_selection_is_that_of_transformers(tiny_fp32, judge, seed):
    config = engine_config(tiny_fp32)
    selection = WatchedSelection(bind_ops(config.kernels, "cpu").index_select)
    session = TargetSession(config, model=model_with_selection(config, selection))
    tokens = prompt(300, seed)
    session.prefill({0: tokens})
    judge.logits(tokens)
    for ours, theirs in zip(selection.chosen, judge.indices, strict=True):
        assert positions_of(ours, session) == [{p for p in row if p >= 0} for row in theirs.tolist()]


def noise(got: Tensor, want: Tensor) -> tuple[float, float]:
    difference = (got - want) / want.square().mean().sqrt()
    return difference.square().mean().sqrt().item(), difference.abs().max().item()


def largest_turned_gap(got: Tensor, want: Tensor) -> float:
    """By how much the judge prefers its own token where ours has another one on top; over the RMS, 0 where none has."""
    theirs, ours = (want.gather(1, logits.argmax(1, keepdim=True)) for logits in (want, got))
    return ((theirs - ours).max() / want.square().mean().sqrt()).item()


@pytest.mark.parametrize("length", [65, 257])
def test_bfloat16_stays_within_its_own_noise_where_nothing_is_chosen(tiny_bf16, tmp_path, length):
    folder = variant(tiny_bf16, tmp_path / "free", **WITHOUT_CHOICES)
    tokens = prompt(length, seed=length)
    session = TargetSession(engine_config(folder, BFLOAT16))
    got, want = session.logits(session.prefill({0: tokens})), GlmReference(folder).logits(tokens)
    rms, largest = noise(got, want)
    assert rms <= 0.03
    assert largest <= 0.25
    assert largest_turned_gap(got, want) <= 0.1


def test_bfloat16_beyond_the_budget_stays_within_its_noise_with_the_judge_s_index_sets(tiny_bf16, tmp_path):
    folder = variant(tiny_bf16, tmp_path / "all_experts", num_experts_per_tok=8)
    config, tokens, selection = engine_config(folder, BFLOAT16), prompt(300, seed=9), ForcedSelection()
    session = TargetSession(config, model=model_with_selection(config, selection))
    judge = GlmReference(folder)
    want = judge.logits(tokens)
    selection.sets = [slots_of(index, session) for index in judge.indices]
    rms, largest = noise(session.logits(session.prefill({0: tokens})), want)
    assert rms <= 0.03
    assert largest <= 0.25


def test_fp8_weights_stay_within_fp8_noise_of_their_dequantised_values(tiny_fp8, tmp_path):
    folder = variant(tiny_fp8, tmp_path / "free", **WITHOUT_CHOICES)
    tokens = prompt(129, seed=4)
    session = TargetSession(engine_config(folder))
    got = session.logits(session.prefill({0: tokens}))
    rms, largest = noise(got, GlmReference(dequantized(folder, tmp_path / "plain")).logits(tokens))
    assert rms <= 0.15
    assert largest <= 0.9
