from pathlib import Path

import pytest
import torch

from stack.training.export import write_draft, write_target
from stack.training.parameters import Tensors, draft_tensors, mtp_tensors, target_tensors
from stack.training.sizes import DRAFT_CONFIG, TEXT_CONFIG


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tensors() -> Tensors:
    """Target and MTP layer with noise on everything, so that no tensor is an identity."""
    return noisy(target_tensors(TEXT_CONFIG, 0) | mtp_tensors(TEXT_CONFIG, 1))


@pytest.fixture(scope="session")
def draft() -> Tensors:
    return noisy(draft_tensors(DRAFT_CONFIG, TEXT_CONFIG["hidden_size"], 2))


@pytest.fixture(scope="session")
def written(tmp_path_factory, tensors, draft) -> Path:
    """The same tensors as a checkpoint in FP32."""
    folder = tmp_path_factory.mktemp("small")
    write_target(folder, tensors, TEXT_CONFIG, dtype="float32")
    write_draft(folder / "draft", draft, DRAFT_CONFIG, dtype="float32")
    return folder


def noisy(tensors: Tensors) -> Tensors:
    draw = torch.Generator().manual_seed(5)
    return {
        n: t + torch.randn(t.shape, generator=draw) * (0.1 * t.std().nan_to_num(0) + 0.02) for n, t in tensors.items()
    }
