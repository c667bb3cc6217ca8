"""How many pieces of work one decode step gives a device."""

import json
from collections import Counter
from pathlib import Path

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from stack.config import EngineConfig, with_settings
from stack.core import SamplingParams
from stack.engine.local import LocalEngine
from stack.models.tiny import TEXT_CONFIG, write_tiny
from tests.support.gpu_launches import gpu_launches
from tests.support.launches import Launches

GREEDY = SamplingParams(max_new_tokens=6, temperature=0.0, ignore_eos=True)
PROMPTS = [[5, 6, 7] * 10, [9] * 20, [11, 12] * 8]
SIZES = {"cache.budget_bytes": 64 * 2**20, "cache.expected_context": 128, "cache.expected_output": 32}
QUARTER = Path(__file__).parents[3] / "workloads" / "checkpoints" / "quarter" / "config.json"
MOST_LAUNCHES = 900
"""Of a plain decode step of the whole model; the published engine's step has 1,841."""


def _watch(engine, enter) -> list:
    """What `enter()` yields around every decode step."""
    seen, decode = [], engine.instance.runner._decode
    run = decode.run

    def watched(*args, **kwargs):
        with enter() as found:
            batch = run(*args, **kwargs)
        seen.append(found)
        return batch

    decode.run = watched
    return seen


def test_a_step_asks_each_op_once_for_each_thing(tmp_path, monkeypatch):
    """Outside the ops: 32 launches a step. A sub-layer's input is quantised once, by its boundary; beside those only
    what attention makes itself is (its queries' rank, its output), and only dense layers have products of their own."""
    write_tiny(tmp_path, dtype="float32", fp8=True)
    launches = Launches()
    launches.watch_ops(monkeypatch)
    paths = {"model.path": str(tmp_path), "model.compute_dtype": "float32"}
    with LocalEngine(with_settings(EngineConfig(), {**SIZES, **paths})) as engine:
        engine.generate(PROMPTS, GREEDY)
        seen = _watch(engine, lambda: launches)
        engine.generate(PROMPTS, GREEDY)
    mixers, mlps = (Counter(TEXT_CONFIG[name]) for name in ("layer_types", "mlp_layer_types"))
    sparse, expert, dense = mixers["deepseek_sparse_attention"], mlps["sparse"], mlps["dense"]
    asked = {
        "moe": expert,
        "mhc_boundary.mhc_boundary_quant": sparse + expert + dense,
        "mhc_boundary": mixers["linear_attention"],
        "rms_norm.rms_norm_quant": sparse,
        "quantize_rows": sparse,
        "linear_fp8": 3 * sparse + 2 * dense,
        "swiglu_quant": dense,
    }
    assert {name: launches.ops[name] / len(seen) for name in asked} == asked
    assert sum(launches.outside.values()) <= len(seen) * 32, launches.outside


class _CountedError(Exception):
    """Ends a run whose tokens mean nothing any more."""


def _write_all_layers(folder) -> None:
    """The quarter model's 45 layers at the tiny model's widths: kernels of a step do not depend on widths."""
    write_tiny(folder, fp8=True)
    config, quarter = (json.loads(file.read_text()) for file in (folder / "config.json", QUARTER))
    names = ("num_hidden_layers", "layer_types", "mlp_layer_types", "indexer_types", "first_k_dense_replace")
    for name in names:
        config["text_config"][name] = quarter["text_config"][name]
    layers = {name: quarter["text_config"]["linear_attn_config"][name] for name in ("kda_layers", "full_attn_layers")}
    config["text_config"]["linear_attn_config"] |= layers
    (folder / "config.json").write_text(json.dumps(config))


def _all_layers(folder, device: str) -> dict[str, object]:
    return {
        "model.path": str(folder),
        "model.weights": "random",
        "model.device": device,
        "cache.page_size": 256,
        "cache.budget_bytes": 2 * 2**30 if device == "cuda" else 2**30,
        "cache.expected_context": 512,
        "graphs.decode": False,
        "scheduler.overlap": False,
    }


@pytest.mark.parametrize(
    ("impls", "most"), [({}, 852), ({"mhc_boundary": "cuda_quant"}, 796)], ids=["first_choices", "boundary_quantises"]
)
def test_a_plain_decode_step_of_all_layers_makes_few_launches_as_counted_without_a_gpu(tmp_path, impls, most):
    """The same count gave 1,062 and 796 where an H200 counted 1,061 and 795."""
    pytest.importorskip("triton")
    _write_all_layers(tmp_path)
    with LocalEngine(with_settings(EngineConfig(), _all_layers(tmp_path, "cpu"))) as engine:
        decode = engine.instance.runner._decode
        counts, run = [], decode.run

        def counted(*args, **kwargs):
            for _ in range(2):  # the first prepares what is kept with the weights
                with gpu_launches(decode._model.ops, impls) as launches:
                    run(*args, **kwargs)
                counts.append(launches)
            raise _CountedError

        decode.run = counted
        with pytest.raises(_CountedError):
            engine.generate(PROMPTS, GREEDY)
    assert 45 <= counts[1].total() <= most, counts[1]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_plain_decode_step_of_all_layers_has_at_most_900_launches(tmp_path):
    _write_all_layers(tmp_path)
    with LocalEngine(with_settings(EngineConfig(), _all_layers(tmp_path, "cuda"))) as engine:
        engine.generate(PROMPTS, GREEDY)
        torch.cuda.synchronize()
        seen = _watch(engine, lambda: profile(activities=[ProfilerActivity.CUDA]))
        engine.generate(PROMPTS, SamplingParams(max_new_tokens=2, temperature=0.0, ignore_eos=True))
        torch.cuda.synchronize()
    kernels = Counter(event.name for event in seen[-1].events() if event.device_type.name == "CUDA")
    print(
        f"{kernels.total()} launches:", *(f"{count:5d} {name[:100]}" for name, count in kernels.most_common()), sep="\n"
    )
    assert 45 <= kernels.total() <= MOST_LAUNCHES
