"""A checkpoint loads whatever its prefix, and says what is wrong with it in one sentence."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from stack.core import ConfigError, ModelGeometry
from stack.kernels.quantized import Fp8Weight
from stack.layers import MixtureOfExperts, SparseAttention, bind_ops
from stack.models import load_model, open_weights
from tests.support.target_session import TargetSession, engine_config


@pytest.fixture
def copied(tiny_bf16, tmp_path):
    return shutil.copytree(tiny_bf16, tmp_path / "copy")


def rewrite(folder, change) -> None:
    file = folder / "model.safetensors"
    save_file(change(load_file(file)), file)


def logits(config) -> torch.Tensor:
    session = TargetSession(config, max_tokens=64)
    return session.logits(session.prefill({0: [5, 6, 7]}))


def test_a_flat_prefix_gives_the_same_model(tiny_bf16, copied):
    rewrite(copied, lambda tensors: {k.replace("model.language_model.", "model."): v for k, v in tensors.items()})
    assert torch.equal(logits(engine_config(copied)), logits(engine_config(tiny_bf16)))


def test_several_files_are_one_checkpoint(tiny_bf16, copied):
    tensors = load_file(copied / "model.safetensors")
    names = sorted(tensors)
    (copied / "model.safetensors").unlink()
    for part, chosen in enumerate((names[::2], names[1::2])):
        save_file({name: tensors[name] for name in chosen}, copied / f"model-0000{part + 1}-of-00002.safetensors")
    assert torch.equal(logits(engine_config(copied)), logits(engine_config(tiny_bf16)))


def test_a_matrix_is_fp8_exactly_where_its_scale_exists(tiny_fp8):
    model = load_model(engine_config(tiny_fp8), "cpu")
    sparse = model.layers[3].mixer
    assert isinstance(sparse, SparseAttention)
    assert len(sparse.inputs.parts) == 1
    assert sparse.inputs.parts[0][0].is_fp8
    assert not sparse.indexer.queries.is_fp8
    assert not model.layers[0].mixer.out.is_fp8
    assert isinstance(model.layers[1].mlp.experts.down, Fp8Weight)


def test_the_mtp_layer_s_blocks_load_from_the_same_source(tiny_fp8):
    config = engine_config(tiny_fp8)
    ops, weights = bind_ops(config.kernels, "cpu"), open_weights(config, "cpu")
    geometry = ModelGeometry.from_file(tiny_fp8)
    prefix = f"layers.{geometry.num_layers}."
    mixer = SparseAttention.load(ops, weights, f"{prefix}self_attn.", geometry)
    experts = MixtureOfExperts.load(ops, weights, f"{prefix}mlp.", geometry)
    assert mixer.out.is_fp8
    assert experts.router_EC.shape == (8, 256)


def test_only_the_first_layers_are_kept_where_asked(tiny_bf16):
    model = load_model(engine_config(tiny_bf16, {"model.num_layers": 4}), "cpu")
    assert len(model.layers) == model.geometry.num_layers == 4


def test_a_missing_tensor_is_named(copied):
    name = "model.language_model.layers.2.self_attn.o_norm.weight"
    rewrite(copied, lambda tensors: {k: v for k, v in tensors.items() if k != name})
    with pytest.raises(ConfigError, match=r"lacks layers\.2\.self_attn\.o_norm\.weight"):
        load_model(engine_config(copied), "cpu")


def test_a_tensor_of_another_shape_is_named(copied):
    config = json.loads((copied / "config.json").read_text())
    config["text_config"]["intermediate_size"] = 640
    (copied / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=r"mlp\.gate_proj\.weight .* asks for \(640, 256\)"):
        load_model(engine_config(copied), "cpu")


def test_a_folder_without_weights_says_what_to_do(copied):
    (copied / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"model\.weights: random"):
        load_model(engine_config(copied), "cpu")


def test_taps_are_the_streams_mean_behind_each_layer_in_the_order_asked_for(tiny_fp32):
    config = engine_config(tiny_fp32)
    session = TargetSession(config, max_tokens=64)
    tokens = list(range(10, 50))
    plain = session.prefill({0: tokens})
    assert plain.tap_TF is None
    for last in (2, 8):
        cut = TargetSession(engine_config(tiny_fp32, {"model.num_layers": last + 1}), max_tokens=64)
        alone = cut.prefill({0: tokens}, taps=(last,)).tap_TF
        tapped = TargetSession(config, max_tokens=64, model=session.model).prefill({0: tokens}, taps=(8, 2))
        assert torch.equal(tapped.tap_TF.split(256, -1)[0 if last == 8 else 1], alone)
        assert torch.equal(tapped.last_TC, plain.last_TC)
