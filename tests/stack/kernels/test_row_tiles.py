"""A product's row has the same bits wherever it stands and however many rows come with it."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stack.kernels.row_tiles import TILE, exact_blocks, pad_rows, tiled_matmul

SHAPES = ((8, 256), (24, 1024), (64, 128), (256, 512), (1796, 256), (4096, 128))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@settings(max_examples=10, deadline=None, derandomize=True)
@given(num_rows=st.integers(1, 300), seed=st.integers(0, 2**16), begin=st.integers(0, 299))
def test_company_and_place_do_not_matter(shape, num_rows, seed, begin):
    generator = torch.Generator().manual_seed(seed)
    rows, weight = torch.randn(num_rows, shape[1], generator=generator), torch.randn(*shape, generator=generator)
    together = tiled_matmul(rows, weight)
    order = torch.randperm(num_rows, generator=generator)
    assert torch.equal(tiled_matmul(rows[order], weight), together[order])
    first = begin % num_rows
    assert torch.equal(tiled_matmul(rows[first:], weight), together[first:])


def test_single_tiles_are_always_exact():
    assert exact_blocks(256, 128)[-1] == TILE


def test_padding_adds_zero_rows_only_where_some_are_missing():
    rows = torch.ones(TILE, 3)
    assert pad_rows(rows, TILE) is rows
    assert pad_rows(rows[:5], TILE).shape == (TILE, 3)
    assert pad_rows(rows[:5], TILE)[5:].eq(0).all()
