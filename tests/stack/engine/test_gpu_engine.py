"""The engine on a CUDA device: graphs change nothing, speculation changes nothing, and the CPU agrees.

Below FP32 a token may differ from the CPU's only where the CPU's own logits leave less room than the stated bound.
"""

import pytest
import torch

from stack.cache.pages import POISON
from stack.config import EngineConfig, with_settings
from stack.core import SamplingParams
from stack.engine.local import LocalEngine
from stack.models.tiny import write_tiny
from tests.support.checkpoints import variant

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

LENGTHS = (3, 64, 65, 200, 333)
NEW = 40
GAP = 0.1
"""Logit gap under which BF16 arithmetic may take the other token; logits of this model have a spread of about 1, and
BF16 arithmetic on a CPU parts from FP32 at gaps up to 0.05 on these prompts."""

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
def smooth(tmp_path_factory):
    """Every expert and every pool takes part: elsewhere a near-tie of either turns rounding into any gap."""
    folder = tmp_path_factory.mktemp("smooth")
    write_tiny(folder / "source", dtype="bfloat16")
    return variant(folder / "source", folder / "smooth", num_experts_per_tok=8, index_topk=2048)


@pytest.fixture(scope="module")
def prompts():
    draw = torch.Generator().manual_seed(5)
    return [torch.randint(4, 1000, (length,), generator=draw).tolist() for length in LENGTHS]


def _run(folder, prompts, device, settings, *, poison=False):
    paths = {"model.path": str(folder), "speculation.draft_path": str(folder / "draft"), "model.device": device}
    config = with_settings(EngineConfig(), {**SIZES, **paths, **settings})
    greedy = SamplingParams(max_new_tokens=NEW, temperature=0.0, ignore_eos=True)
    with LocalEngine(config) as engine:
        pages, states = engine.instance.pages, engine.instance.states
        for pool, size in ((pages, pages.layout.page_bytes), (states, states.layout.slot_bytes)) if poison else ():
            pool.buffer[size:].fill_(POISON)
            torch.cuda.synchronize()
        found = engine.generate(prompts, greedy)
        if poison:
            assert not torch.any(pages.rows([0])[0]) and not torch.any(states.row(0)), "a sink was written"
        return found


@pytest.fixture(scope="module")
def eager(tiny, prompts):
    return _run(tiny, prompts, "cuda", {"graphs.decode": False})


def test_captured_steps_give_the_eager_tokens(tiny, prompts, eager):
    assert _run(tiny, prompts, "cuda", {}) == eager


def test_padding_and_stale_memory_change_no_captured_step(tiny, prompts, eager):
    """Five requests in steps of eight rows; every byte that was not written yet is a NaN, the sinks' excepted."""
    assert _run(tiny, prompts, "cuda", {}, poison=True) == eager


@pytest.mark.parametrize("scheduling", [{"scheduler.overlap": False}, {"scheduler.war_barrier": "early"}], ids=str)
def test_how_steps_are_prepared_changes_no_token(tiny, prompts, eager, scheduling):
    """By default a step is planned while the one before runs, and its barrier is deferred."""
    assert _run(tiny, prompts, "cuda", {"graphs.decode": False, **scheduling}) == eager


def test_the_same_run_twice_gives_the_same_tokens(tiny, prompts, eager):
    assert _run(tiny, prompts, "cuda", {"graphs.decode": False}) == eager


@pytest.fixture(scope="module")
def plain(smooth, prompts):
    return _run(smooth, prompts, "cuda", {"graphs.decode": False})


@pytest.mark.parametrize("graphs", [False, True], ids=["eager", "captured"])
@pytest.mark.parametrize("commit", ["replay", "snapshot"])
@pytest.mark.parametrize("method", ["dflash2", "mtp"])
def test_speculation_parts_from_plain_text_only_where_logits_are_close(smooth, prompts, plain, method, commit, graphs):
    """Verify and plain decode round differently below FP32: a first difference needs a small gap, judged by the CPU."""
    settings = {"speculation.method": method, "speculation.commit": commit, "graphs.decode": graphs}
    assert all(abs(gap) <= GAP for gap in _gaps(smooth, prompts, _run(smooth, prompts, "cuda", settings), plain))


@pytest.mark.parametrize(
    ("verify", "commit"),
    [
        ("cuda_chain", "cuda_fold"),
        ("cuda_chunk", "cuda_fold"),
        ("cuda_stream", "cuda_stream"),
        ("cuda_stream_roles", "cuda_stream_chunk"),
    ],
)
def test_either_verify_kernel_is_as_close(smooth, prompts, plain, verify, commit):
    kernels = {"kernels.kda_verify": verify, "kernels.kda_commit": commit}
    settings = {"speculation.method": "dflash2", "graphs.decode": False, **kernels}
    assert all(abs(gap) <= GAP for gap in _gaps(smooth, prompts, _run(smooth, prompts, "cuda", settings), plain))


def test_the_cpu_agrees_where_its_own_logits_leave_room(smooth, prompts, plain):
    """Where the CPU (FP32 arithmetic, the same stored formats) parts from the GPU, its top two logits are close."""
    cpu = _run(smooth, prompts, "cpu", {"model.compute_dtype": "float32", "graphs.decode": False})
    assert all(abs(gap) <= GAP for gap in _gaps(smooth, prompts, plain, cpu))


def _gaps(folder, prompts, found, wanted) -> list[float]:
    """The CPU's logit of each wanted token over the found one's, where two texts part first; printed."""
    parted = [(i, _agreement(a, b)) for i, (a, b) in enumerate(zip(found, wanted, strict=True)) if a != b]
    gaps = [_gap(folder, prompts[i], wanted[i], found[i], at) for i, at in parted]
    listed = [(*pair, round(gap, 4)) for pair, gap in zip(parted, gaps, strict=True)]
    print("first differences (prompt, token, logit gap):", listed)
    return gaps


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
