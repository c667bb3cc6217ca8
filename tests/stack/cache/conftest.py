"""The geometries that cache tests share: the small test model, and one rank of four at the real shapes."""

from dataclasses import replace
from pathlib import Path

import pytest

from stack.core import DraftGeometry, ModelGeometry
from stack.models.tiny import DRAFT_CONFIG, TEXT_CONFIG

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="session")
def tiny() -> ModelGeometry:
    return ModelGeometry.from_hf(TEXT_CONFIG)


@pytest.fixture(scope="session")
def tiny_draft() -> DraftGeometry:
    return DraftGeometry.from_hf(DRAFT_CONFIG)


@pytest.fixture(scope="session")
def quarter() -> ModelGeometry:
    return ModelGeometry.from_file(ROOT / "workloads/checkpoints/quarter")


@pytest.fixture(scope="session")
def quarter_draft(tiny_draft) -> DraftGeometry:
    """The release's draft as one of four ranks holds it: 2 of 8 KV heads."""
    return replace(tiny_draft, num_layers=5, num_heads=8, num_kv_heads=2, head_dim=128, window=2048, block_size=8)
