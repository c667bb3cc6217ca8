"""Random numbers follow Philox-4x32-10 to the bit and depend on seed, position and stream alone."""

import torch

from stack.kernels.philox import philox, uniforms


def words(*values: int) -> tuple[torch.Tensor, ...]:
    return tuple(torch.tensor([value]) for value in values)


def test_published_vectors_of_philox_4x32_10():
    zeros = philox(words(0, 0, 0, 0), words(0, 0))
    assert [int(word) for word in zeros] == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    ones = philox(words(*[0xFFFFFFFF] * 4), words(0xFFFFFFFF, 0xFFFFFFFF))
    assert [int(word) for word in ones] == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]
    digits = philox(words(0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), words(0xA4093822, 0x299F31D0))
    assert [int(word) for word in digits] == [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1]


def test_uniforms_fill_the_unit_interval_and_repeat():
    seed, position = torch.tensor([2**63 - 1]).expand(20_000), torch.arange(20_000)
    drawn = uniforms(seed, position, 0)
    assert 0.0 <= drawn.min() < 0.001
    assert 0.999 < drawn.max() < 1.0
    assert abs(drawn.mean() - 0.5) < 0.01
    assert torch.equal(drawn[100:200], uniforms(seed[100:200], position[100:200], 0))


def test_seeds_positions_and_streams_are_separate():
    position = torch.arange(1000)
    base = uniforms(torch.zeros(1000).long(), position, 0)
    for other in (uniforms(torch.full((1000,), -1), position, 0), uniforms(torch.zeros(1000).long(), position, 1)):
        assert (base - other).abs().mean() > 0.2
