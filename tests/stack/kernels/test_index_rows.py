"""FP8 index rows are defined to the bit: rotation, scale and codes."""

import math

import torch

from stack.kernels.index_rows import quantize_index_rows, rotate


def hadamard(width: int) -> torch.Tensor:
    matrix = torch.ones(1, 1, dtype=torch.float64)
    while matrix.shape[0] < width:
        matrix = torch.cat((torch.cat((matrix, matrix), 1), torch.cat((matrix, -matrix), 1)))
    return matrix


def test_rotation_is_the_normalised_hadamard_matrix():
    x = torch.randn(5, 128, generator=torch.Generator().manual_seed(0)).bfloat16()
    want = x.double() @ hadamard(128) / math.sqrt(128)
    assert (rotate(x).double() - want).abs().max() <= 2.0**-8 * want.abs().max()


def test_rotation_keeps_dot_products():
    x, y = torch.randn(2, 7, 128, generator=torch.Generator().manual_seed(1)).bfloat16()
    got = (rotate(x).double() * rotate(y).double()).sum(-1)
    assert (got - (x.double() * y.double()).sum(-1)).abs().max() < 0.2


def test_scale_is_the_smallest_power_of_two_that_keeps_codes_in_range():
    rows = torch.randn(64, 128, generator=torch.Generator().manual_seed(2)) * torch.logspace(-6, 6, 64)[:, None]
    codes, scale = quantize_index_rows(rows)
    largest = rotate(rows).float().abs().amax(-1).clamp(min=1e-4)
    exponent = torch.tensor([math.ceil(math.log2(value / 448)) for value in largest.tolist()])
    assert torch.equal(scale, torch.exp2(exponent.float()))
    assert codes.float().abs().max() <= 448


def test_codes_are_the_rounded_quotient():
    rows = torch.randn(9, 128, generator=torch.Generator().manual_seed(3))
    codes, scale = quantize_index_rows(rows)
    error = (codes.float() * scale[:, None] - rotate(rows).float()).abs()
    assert (error <= rotate(rows).float().abs() / 16 + scale[:, None] * 2.0**-10).all()
