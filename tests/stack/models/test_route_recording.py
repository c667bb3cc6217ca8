"""`kernels.moe_routes`: what the routers of decode steps chose comes out in a file, request by request."""

import pytest
import torch

from stack.config import EngineConfig, with_settings
from stack.core import SamplingParams
from stack.core.errors import ConfigError
from stack.engine.local import LocalEngine
from stack.kernels.moe.routes import read_routes
from stack.models.tiny import TEXT_CONFIG, write_tiny


def test_decode_steps_of_all_requests_are_recorded_and_change_no_token(tmp_path):
    write_tiny(tmp_path, dtype="float32")
    settings = {
        "model.path": str(tmp_path),
        "model.compute_dtype": "float32",
        "cache.budget_bytes": 64 * 2**20,
        "cache.expected_context": 128,
    }
    prompts = [[5, 6, 7] * 10, [9] * 20, [11, 12] * 8]
    greedy = SamplingParams(max_new_tokens=20, temperature=0.0, ignore_eos=True)
    with LocalEngine(with_settings(EngineConfig(), settings)) as engine:
        wanted = engine.generate(prompts, greedy)
    recording = settings | {"kernels.moe_routes": str(tmp_path / "routes.safetensors"), "kernels.moe_routes_steps": 2}
    with LocalEngine(with_settings(EngineConfig(), recording)) as engine:
        assert engine.generate(prompts, greedy) == wanted
    routes = read_routes(tmp_path / "routes.safetensors")
    assert sorted(routes.layers) == [i for i, kind in enumerate(TEXT_CONFIG["mlp_layer_types"]) if kind == "sparse"]
    assert routes.num_experts == TEXT_CONFIG["n_routed_experts"]
    assert routes.notes == {"model": str(tmp_path), "weights": "checkpoint", "num_steps": "2"}
    for layer in routes.layers.values():
        assert layer.ids_RK.shape == (6, TEXT_CONFIG["num_experts_per_tok"])
        assert torch.all((layer.ids_RK >= 0) & (layer.ids_RK < routes.num_experts))
        assert torch.unique(layer.request_R, return_counts=True)[1].tolist() == [2, 2, 2]


def test_recording_beside_captured_steps_is_refused():
    with pytest.raises(ConfigError, match=r"graphs\.decode to false"):
        with_settings(EngineConfig(), {"model.device": "cuda", "kernels.moe_routes": "r.safetensors"})
