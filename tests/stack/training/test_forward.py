"""The trained forward is the engine's and transformers': logits, taps, MTP chains, draft blocks, and gradients."""

import dataclasses

import pytest
import torch

from stack.config import KernelConfig
from stack.core import ForwardContext
from stack.models import open_weights
from stack.models.dflash2 import DFlash2Draft
from stack.models.draft_context import ContextRows
from stack.models.mtp import MtpLayer
from stack.training.block_draft import draft_blocks, pair_scores
from stack.training.delta_rule import delta_rule
from stack.training.mtp import MtpChain
from stack.training.sizes import DRAFT_CONFIG, TEXT_CONFIG
from stack.training.stepping import Stepper
from stack.training.target import logits_of, target_forward
from tests.support.glm_reference import GlmReference
from tests.support.target_session import TargetSession, engine_config

TAPS = tuple(DRAFT_CONFIG["dflash_config"]["target_layer_ids"])
CLOSE = 1e-4


def prompt(length, seed=1):
    return torch.randint(2, 500, (length,), generator=torch.Generator().manual_seed(seed))


def passed(tokens, tensors):
    with torch.no_grad():
        return target_forward(tokens[None], tensors, TEXT_CONFIG, is_sparse=True, taps=TAPS)


@pytest.mark.parametrize("length", [1, 5, 64, 131, 132, 400])
def test_logits_and_taps_are_the_engines(written, tensors, length):
    tokens = prompt(length)
    session = TargetSession(engine_config(written))
    hidden = session.prefill({0: tokens.tolist()}, taps=TAPS)
    mine = passed(tokens, tensors)
    torch.testing.assert_close(logits_of(mine.hidden, tensors)[0], session.logits(hidden), atol=CLOSE, rtol=0)
    torch.testing.assert_close(torch.cat(mine.taps, -1)[0], hidden.tap_TF, atol=CLOSE, rtol=CLOSE)


@pytest.fixture(scope="module")
def judge(written):
    return GlmReference(written)


@pytest.mark.parametrize("length", [5, 300])
def test_logits_are_those_of_transformers(judge, tensors, length):
    tokens = prompt(length)
    mine = logits_of(passed(tokens, tensors).hidden, tensors)[0]
    torch.testing.assert_close(mine, judge.logits(tokens.tolist()), atol=CLOSE, rtol=0)


def test_gradients_are_those_of_transformers_while_nothing_is_dropped(judge, tensors):
    """Within the budget both are the same dense function; experts' and mixers' weights stand for all kinds."""
    tokens = prompt(96, seed=2)
    leaves = {name: t.clone().requires_grad_() for name, t in tensors.items()}
    mine = target_forward(tokens[None], leaves, TEXT_CONFIG, is_sparse=True)
    torch.nn.functional.cross_entropy(logits_of(mine.hidden, leaves)[0, :-1], tokens[1:]).backward()
    judge.model.zero_grad()
    theirs = judge.model.model.language_model(input_ids=tokens[None], use_cache=False).last_hidden_state
    torch.nn.functional.cross_entropy(judge.model.lm_head(theirs)[0, :-1], tokens[1:]).backward()
    found = dict(judge.model.model.language_model.named_parameters())
    pairs = {
        "embed_tokens.weight": "embed_tokens.weight",
        "layers.0.self_attn.k_proj.weight": "layers.0.self_attn.k_proj.weight",
        "layers.0.self_attn.A_log": "layers.0.self_attn.forget_gate.A_log",
        "layers.1.self_attn.dt_bias": "layers.1.self_attn.forget_gate.dt_bias",
        "layers.1.mlp.experts.gate_up": "layers.1.mlp.experts.gate_up_proj",
        "layers.1.mlp.gate.weight": "layers.1.mlp.gate.weight",
        "layers.2.self_attn.kv_b_proj.weight": "layers.2.self_attn.kv_b_proj.weight",
        "layers.3.hc_ffn_fn": "layers.3.ffn_hc.fn",
        "layers.5.self_attn.o_proj.weight": "layers.5.self_attn.o_proj.weight",
    }
    for ours, name in pairs.items():
        want = found[name].grad
        assert want is not None, name
        difference = (leaves[ours].grad - want).norm() / want.norm()
        assert difference <= 2e-3, (ours, float(difference))


def test_stepping_is_the_whole_forward(tensors):
    tokens = torch.stack([prompt(150, seed=3), prompt(150, seed=4)])
    stepper = Stepper(tensors, TEXT_CONFIG, 2, 150)
    stepped = torch.stack([stepper.step(tokens[:, i]) for i in range(150)], 1)
    with torch.no_grad():
        whole = target_forward(tokens, tensors, TEXT_CONFIG, is_sparse=True).hidden
    torch.testing.assert_close(stepped, whole, atol=CLOSE, rtol=CLOSE)


def test_mtp_entries_and_chained_steps_are_the_engines(written, tensors):
    tokens, length = prompt(210, seed=6), 200
    mine = passed(tokens[: length + 1], tensors)
    with torch.no_grad():
        chain = MtpChain(tokens[None, 1 : length + 1], mine.hidden[:, :length], tensors, TEXT_CONFIG)
        second = chain.step(tokens[None, 2 : length + 2], chain.r)
    config = engine_config(written, {"speculation.method": "mtp"})
    session = TargetSession(config)
    layer = MtpLayer(
        session.model.geometry, session.model.ops, open_weights(config, "cpu"), session.model.embed_VC,
        layer_number=TEXT_CONFIG["num_hidden_layers"],
    )  # fmt: skip
    context = session._context([0], [0], [length], "prefill", 0)
    context = dataclasses.replace(context, extend_lens=(length,), prefix_lens=(0,))
    r_TC, index_TW = layer.forward(tokens[1 : length + 1], mine.hidden[0, :length], context, session.memory)
    torch.testing.assert_close(chain.r[0], r_TC, atol=CLOSE, rtol=CLOSE)
    last = chained_context(session, length)
    got, _ = layer.forward(tokens[length + 1 : length + 2], r_TC[-1:], last, session.memory, index_TW[-1:])
    torch.testing.assert_close(second[0, -1:], got, atol=CLOSE, rtol=CLOSE)


def chained_context(session, position) -> ForwardContext:
    return session._context([0], [position], [1], "decode", 1)


def test_draft_blocks_are_the_engines(written, tensors, draft):
    tokens = prompt(300, seed=8)
    mine, anchors = passed(tokens, tensors), torch.tensor([[1, 60, 200]])
    embed, head = tensors["embed_tokens.weight"], tensors["lm_head.weight"]
    engine = DFlash2Draft.load(written / "draft", embed, head, KernelConfig())
    with torch.no_grad():
        blocks = draft_blocks(tokens[None], mine.taps, anchors, draft, DRAFT_CONFIG, embed, head)
        rows = engine.context_rows(torch.cat(mine.taps, -1)[0], torch.arange(300))
    for a, anchor in enumerate(anchors[0].tolist()):
        drafts = engine.draft(
            tokens[anchor : anchor + 1],
            torch.tensor([anchor]).int(),
            context_of(rows, anchor),
            torch.zeros(1),
            torch.zeros(1, 7),
        )
        previous = torch.cat((tokens[anchor : anchor + 1], drafts.token_BE[0, :-1]))
        scores = pair_scores(blocks, previous.expand(1, 3, -1), draft)[0, a]
        candidates = drafts.ids_BEK[0]
        best = candidates.gather(1, scores.gather(1, candidates).argmax(1)[:, None])[:, 0]
        assert best.tolist() == drafts.token_BE[0].tolist()
        assert set(candidates[3].tolist()) == set(blocks.logits[0, a, 3].topk(16).indices.tolist())


def context_of(rows, anchor, window=128) -> ContextRows:
    first = max(anchor - window, 0)
    position = torch.full((1, window), -1, dtype=torch.int32)
    position[0, : anchor - first] = torch.arange(first, anchor)
    pools = []
    for pair in rows:
        padded = [torch.zeros(1, window, *x.shape[1:]) for x in pair]
        for x, target in zip(pair, padded, strict=True):
            target[0, : anchor - first] = x[first:anchor]
        pools.append(tuple(padded))
    return ContextRows(pools, torch.zeros(1, window).long(), torch.arange(window)[None], position)


def test_the_chunked_rule_and_its_gradient_are_the_recurrences_even_at_the_strongest_decay():
    draw = torch.Generator().manual_seed(9)
    q, k, v, raw = (torch.randn(1, 71, 2, 8, generator=draw, dtype=torch.float64) for _ in range(4))
    k = torch.nn.functional.normalize(k, dim=-1)
    g = -5 * torch.sigmoid(4 * raw)
    beta = torch.rand(1, 71, 2, generator=draw, dtype=torch.float64)
    inputs = [x.requires_grad_() for x in (q, k, v, g, beta)]
    slow = recurrence(*inputs)
    wanted = torch.autograd.grad(slow.square().sum(), inputs)
    single = [x.detach().float().requires_grad_() for x in inputs]
    fast = delta_rule(*single)
    torch.testing.assert_close(fast, slow.float(), atol=1e-4, rtol=1e-3)
    for got, want in zip(torch.autograd.grad(fast.square().sum(), single), wanted, strict=True):
        assert (got - want).norm() / want.norm() <= 1e-4


def recurrence(q, k, v, g, beta):
    state, outputs = q.new_zeros(1, 2, 8, 8), []
    for t in range(q.shape[1]):
        state = state * g[:, t].exp()[..., None]
        u = beta[:, t, :, None] * (v[:, t] - (k[:, t, :, None] @ state)[..., 0, :])
        state = state + k[:, t, ..., None] * u[..., None, :]
        outputs.append((q[:, t, :, None] @ state)[..., 0, :])
    return torch.stack(outputs, 1)
