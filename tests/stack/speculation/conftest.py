import pytest
import torch

from stack.core import SamplingParams
from stack.models.tiny import write_tiny
from tests.support.local_pair import single

LENGTHS = (3, 60, 64, 65, 127)
"""Two of them grow into a new page while they decode; two are longer than the draft's window."""
NEW = 28
EXACT = {
    "model.compute_dtype": "float32",
    "cache.kv_dtype": "float32",
    "cache.index_dtype": "float32",
    "cache.conv_dtype": "float32",
    "cache.budget_bytes": 160 * 2**20,
    "cache.expected_context": 256,
    "cache.expected_output": 64,
    "scheduler.chunk_tokens": 128,
    "scheduler.max_prefill_tokens": 256,
}
METHODS = {
    "dflash2": {"speculation.method": "dflash2"},
    "dflash2_full": {"speculation.method": "dflash2", "cache.draft_kv": "full"},
    "mtp516": {"speculation.method": "mtp", "speculation.num_steps": 5, "speculation.verify_width": 6},
    "mtp718": {"speculation.method": "mtp", "speculation.share_index": False},
}


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    write_tiny(folder, dtype="float32")
    return folder


@pytest.fixture(scope="session")
def exact(tiny):
    """Settings of an instance of the tiny model in FP32 throughout, with a method's or without."""
    paths = {"model.path": str(tiny), "speculation.draft_path": str(tiny / "draft")}
    return lambda method=None, **more: EXACT | paths | METHODS.get(method, {}) | more


@pytest.fixture(scope="session")
def prompts():
    draw = torch.Generator().manual_seed(5)
    return [torch.randint(4, 1000, (length,), generator=draw).tolist() for length in LENGTHS]


@pytest.fixture(scope="session")
def greedy():
    """Sampling of `count` requests: request i has seed i."""

    def params(count, new=NEW, **more):
        return [
            SamplingParams(max_new_tokens=new, temperature=0.0, ignore_eos=True, seed=i, **more) for i in range(count)
        ]

    return params


@pytest.fixture(scope="session")
def plain(exact, prompts, greedy):
    """Greedy tokens of each prompt without speculation."""
    with single(exact()) as one:
        return [tokens for tokens, _ in one.run(prompts, greedy(len(prompts)))]
