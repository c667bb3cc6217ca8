"""In FP32 on the CPU a row's bits depend on its own request alone: not on the batch, the chunking or speculation."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stack.models import TargetModel, load_model
from tests.support.target_session import TargetSession, engine_config


@pytest.fixture(scope="module")
def config(tiny_fp32):
    return engine_config(tiny_fp32)


@pytest.fixture(scope="module")
def model(config) -> TargetModel:
    return load_model(config, "cpu")


def prompt(length: int, seed: int) -> list[int]:
    return torch.randint(2, 1000, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def alone(config, model, tokens: list[int]) -> torch.Tensor:
    session = TargetSession(config, model=model, max_tokens=512)
    return session.logits(session.prefill({0: tokens}))


@settings(max_examples=4, deadline=None, derandomize=True)
@given(lengths=st.lists(st.integers(1, 150), min_size=2, max_size=4))
def test_a_prompt_gives_the_same_bits_with_any_company(config, model, lengths):
    prompts = {r: prompt(length, seed=length + r) for r, length in enumerate(lengths)}
    session = TargetSession(config, model=model, num_requests=len(lengths), max_tokens=192)
    together = session.logits(session.prefill(prompts)).split(lengths)
    for request, tokens in prompts.items():
        assert torch.equal(together[request], alone(config, model, tokens))


@pytest.mark.parametrize("cut", [(64, 200), (128, 136), (192, 72)])
def test_chunks_that_end_at_multiples_of_64_give_the_bits_of_one_pass(config, model, cut):
    tokens = prompt(sum(cut), seed=5)
    session = TargetSession(config, model=model, max_tokens=512)
    first = session.logits(session.prefill({0: tokens[: cut[0]]}))
    second = session.logits(session.prefill({0: tokens[cut[0] :]}))
    whole = TargetSession(config, model=model, max_tokens=512)
    assert torch.equal(torch.cat((first, second)), whole.logits(whole.prefill({0: tokens})))
    assert torch.equal(session.memory.state_SHLKV[1], whole.memory.state_SHLKV[1])
    assert torch.equal(session.memory.conv_SHLCDW[1], whole.memory.conv_SHLCDW[1])


@settings(max_examples=2, deadline=None, derandomize=True)
@given(data=st.data())
def test_a_decoded_token_gives_the_same_bits_with_any_company(config, model, data):
    lengths = data.draw(st.lists(st.integers(1, 140), min_size=2, max_size=9))
    session = TargetSession(config, model=model, num_requests=len(lengths), max_tokens=192)
    for request, length in enumerate(lengths):
        session.prefill({request: prompt(length, seed=request)})
    order = data.draw(st.permutations(range(len(lengths))))
    rows = session.logits(session.decode({request: 10 + request for request in order}))
    for row, request in zip(rows, order, strict=True):
        single = TargetSession(config, model=model, max_tokens=192)
        single.prefill({0: prompt(lengths[request], seed=request)})
        assert torch.equal(row, single.logits(single.decode({0: 10 + request}))[0])


@settings(max_examples=4, deadline=None, derandomize=True)
@given(data=st.data())
def test_verify_and_commit_give_the_bits_of_decoding(tiny_fp32, data):
    speculating = engine_config(
        tiny_fp32, {"speculation.method": "mtp", "speculation.verify_width": 4, "speculation.num_steps": 3}
    )
    lengths = data.draw(st.lists(st.integers(1, 90), min_size=1, max_size=3))
    verifier = TargetSession(speculating, num_requests=len(lengths), max_tokens=192)
    decoder = TargetSession(speculating, num_requests=len(lengths), max_tokens=192, model=verifier.model)
    for request, length in enumerate(lengths):
        for session in (verifier, decoder):
            session.prefill({request: prompt(length, seed=request)})
    for _ in range(3):
        drafts = {r: prompt(4, seed=data.draw(st.integers(0, 99))) for r in range(len(lengths))}
        counts = {r: data.draw(st.integers(1, 4)) for r in range(len(lengths))}
        verified = verifier.logits(verifier.verify(drafts)).unflatten(0, (-1, 4))
        verifier.accept(counts)
        for offset in range(max(counts.values())):
            step = {r: drafts[r][offset] for r in drafts if offset < counts[r]}
            decoded = decoder.logits(decoder.decode(step))
            for row, request in zip(decoded, step, strict=True):
                assert torch.equal(row, verified[request, offset])
    for name in ("state_SHLKV", "conv_SHLCDW"):
        assert torch.equal(getattr(verifier.memory, name)[1:], getattr(decoder.memory, name)[1:])
