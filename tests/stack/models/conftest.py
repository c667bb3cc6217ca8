"""Checkpoints that several test modules share, written once a run."""

from pathlib import Path

import pytest
import torch

from stack.models.tiny import write_tiny


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny_fp32(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `tiny` checkpoint with unrounded FP32 weights."""
    folder = tmp_path_factory.mktemp("tiny_fp32")
    write_tiny(folder, seed=0, dtype="float32")
    return folder


@pytest.fixture(scope="session")
def tiny_bf16(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `tiny` checkpoint as it is written by default."""
    folder = tmp_path_factory.mktemp("tiny_bf16")
    write_tiny(folder, seed=0)
    return folder


@pytest.fixture(scope="session")
def tiny_fp8(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `tiny` checkpoint with block-scaled FP8 linears."""
    folder = tmp_path_factory.mktemp("tiny_fp8")
    write_tiny(folder, seed=0, fp8=True)
    return folder
