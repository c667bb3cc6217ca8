"""Drawn weights give a working model whose routing spreads over the experts."""

import json

import pytest
import torch

from stack.kernels.quantized import Fp8Weight
from stack.layers import MixtureOfExperts
from stack.models import load_model
from stack.models.tiny import TEXT_CONFIG
from tests.support.target_session import TargetSession, engine_config


@pytest.fixture
def folder(tmp_path):
    text = TEXT_CONFIG | {"num_hidden_layers": 4, "layer_types": TEXT_CONFIG["layer_types"][:4], "n_routed_experts": 24}
    text |= {"mlp_layer_types": ["dense", "sparse", "sparse", "sparse"], "indexer_types": ["full"] * 4}
    config = {"text_config": text, "quantization_config": {"quant_method": "fp8"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    return tmp_path


def drawn(folder, **settings):
    return engine_config(folder, {"model.weights": "random", **settings})


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_model_needs_no_checkpoint(folder, dtype):
    session = TargetSession(drawn(folder, **{"model.compute_dtype": dtype}))
    logits = session.logits(session.prefill({0: list(range(2, 80))}))
    logits = torch.cat((logits, session.logits(session.decode({0: 5}))))
    assert logits.shape == (79, TEXT_CONFIG["vocab_size"])
    assert logits.isfinite().all()
    assert 0.3 < logits.std().item() < 3.0


def test_matrices_that_the_release_quantises_are_fp8(folder):
    model = load_model(drawn(folder), "cpu")
    moe = model.layers[1].mlp
    assert isinstance(moe, MixtureOfExperts)
    assert isinstance(moe.experts.gate_up, Fp8Weight)
    assert moe.shared.down.is_fp8
    assert model.layers[3].mixer.out.is_fp8
    assert not model.layers[0].mixer.out.is_fp8


def test_tokens_spread_over_the_experts(folder):
    config = drawn(folder)
    session = TargetSession(config)
    moe = session.model.layers[2].mlp
    x = torch.randn(200, TEXT_CONFIG["hidden_size"], generator=torch.Generator().manual_seed(0))
    ids, _ = session.model.ops.router(x, moe.router_EC, moe.bias_E, top_k=2, scaling=2.5, normalize=True)
    chosen = ids.flatten().bincount(minlength=24)
    assert (chosen > 0).sum().item() == 24
    assert chosen.max().item() < 5 * chosen.float().mean().item()


def test_a_seed_decides_every_weight(folder):
    first, again = (load_model(drawn(folder), "cpu") for _ in range(2))
    other = load_model(drawn(folder, **{"model.random_seed": 1}), "cpu")
    assert torch.equal(first.head_VC, again.head_VC)
    assert not torch.equal(first.head_VC, other.head_VC)
