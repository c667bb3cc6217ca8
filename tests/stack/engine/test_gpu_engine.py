"""The engine on a CUDA device: graphs change nothing, speculation changes nothing, and the CPU agrees.

Below FP32 a token may differ from the CPU's only where the CPU's own logits leave less room than the stated bound.
"""

import pytest
import torch

from stack.config import EngineConfig, with_settings
from stack.core import SamplingParams
from stack.engine.local import LocalEngine
from stack.models.tiny import write_tiny

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

LENGTHS = (3, 64, 65, 200, 333)
NEW = 40
GAP = 0.25
"""Logit gap under which BF16 arithmetic may take the other token; logits of this model have a spread of about 1."""

SIZES = {
    "cache.page_size": 256,
    "cache.budget_bytes": 2 * 2**30,
    "cache.expected_context": 512,
    "cache.expected_output": 64,
    "scheduler.chunk_tokens": 512,
    "scheduler.max_prefill_tokens": 1024,
    "graphs.decode_batch_sizes": [1, 2, 4, 8],
    "scheduler.max_running": 8,
}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    write_tiny(folder, dtype="bfloat16", fp8=True)
    return folder


@pytest.fixture(scope="module")
def prompts():
    draw = torch.Generator().manual_seed(5)
    return [torch.randint(4, 1000, (length,), generator=draw).tolist() for length in LENGTHS]


def _run(folder, prompts, device, settings):
    paths = {"model.path": str(folder), "speculation.draft_path": str(folder / "draft"), "model.device": device}
    config = with_settings(EngineConfig(), {**SIZES, **paths, **settings})
    greedy = SamplingParams(max_new_tokens=NEW, temperature=0.0, ignore_eos=True)
    with LocalEngine(config) as engine:
        return engine.generate(prompts, greedy)


@pytest.fixture(scope="module")
def eager(tiny, prompts):
    return _run(tiny, prompts, "cuda", {"graphs.decode": False})


def test_captured_steps_give_the_eager_tokens(tiny, prompts, eager):
    assert _run(tiny, prompts, "cuda", {}) == eager


def test_the_same_run_twice_gives_the_same_tokens(tiny, prompts, eager):
    assert _run(tiny, prompts, "cuda", {"graphs.decode": False}) == eager


@pytest.mark.parametrize("graphs", [False, True], ids=["eager", "captured"])
@pytest.mark.parametrize("commit", ["replay", "snapshot"])
@pytest.mark.parametrize("method", ["dflash2", "mtp"])
def test_speculation_parts_from_plain_text_only_where_logits_are_close(tiny, prompts, eager, method, commit, graphs):
    """Verify and plain decode round differently below FP32: a first difference needs a small gap, judged by the CPU."""
    settings = {"speculation.method": method, "speculation.commit": commit, "graphs.decode": graphs}
    found = _run(tiny, prompts, "cuda", settings)
    parted = [(i, _agreement(a, b)) for i, (a, b) in enumerate(zip(found, eager, strict=True)) if a != b]
    gaps = [abs(_gap(tiny, prompts[i], eager[i], found[i], at)) for i, at in parted]
    print(
        "first differences (prompt, token, logit gap):", [(*p, round(g, 3)) for p, g in zip(parted, gaps, strict=True)]
    )
    assert all(gap <= GAP for gap in gaps)


def test_the_cpu_agrees_where_its_own_logits_leave_room(tiny, prompts, eager):
    """Where the CPU (FP32 arithmetic, the same stored formats) parts from the GPU, its top two logits are close."""
    cpu = _run(tiny, prompts, "cpu", {"model.compute_dtype": "float32", "graphs.decode": False})
    parted = [(i, _agreement(a, b)) for i, (a, b) in enumerate(zip(cpu, eager, strict=True)) if a != b]
    gaps = [_gap(tiny, prompts[i], cpu[i], eager[i], at) for i, at in parted]
    print(
        "first differences (prompt, token, logit gap):", [(*p, round(g, 3)) for p, g in zip(parted, gaps, strict=True)]
    )
    assert all(gap <= GAP for gap in gaps)


def _agreement(found, wanted) -> int:
    return next((i for i, (a, b) in enumerate(zip(found, wanted, strict=True)) if a != b), len(wanted))


def _gap(folder, prompt, first, second, at) -> float:
    """The CPU's logit of `first`'s token over that of `second`'s, where they part."""
    text = [*prompt, *first[:at]]
    paths = {"model.path": str(folder), "model.device": "cpu", "model.compute_dtype": "float32"}
    with LocalEngine(with_settings(EngineConfig(), {**SIZES, **paths, "graphs.decode": False})) as engine:
        kept = []
        model = engine.instance.runner._prefill._model
        logits = model.logits
        model.logits = lambda hidden: kept.append(logits(hidden)) or kept[-1]
        engine.generate([text], SamplingParams(max_new_tokens=1, temperature=0.0, ignore_eos=True))
    return float(kept[0][0, first[at]] - kept[0][0, second[at]])
