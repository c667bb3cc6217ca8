"""The DFlash2 pieces over batches equal their one-row references."""

import pytest
import torch

from stack.kernels.dflash_block import reference, torch_block

B, W, C, H, G, D = 3, 8, 24, 4, 2, 16


@pytest.fixture
def draw():
    return torch.Generator().manual_seed(17)


def test_rope_turns_pairs_by_position(draw):
    x, position = torch.randn(5, H, D, generator=draw), torch.tensor([0, 1, 7, 63, 4001])
    got = torch_block.rope(x, position, theta=10000.0)
    torch.testing.assert_close(got, reference.rope(x, position, theta=10000.0), atol=2e-3, rtol=1e-4)
    torch.testing.assert_close(got[0], x[0])
    torch.testing.assert_close(got.norm(dim=-1), x.norm(dim=-1))


def test_dynamic_conv_never_looks_before_its_block(draw):
    y, coef = torch.randn(B, W, 32, generator=draw), torch.randn(B, W, 2, 32, generator=draw)
    torch.testing.assert_close(torch_block.dynamic_conv(y, coef), reference.dynamic_conv(y, coef))
    coef[:, 0, 1] = float("nan")
    assert torch.isfinite(torch_block.dynamic_conv(y, coef)).all()


@pytest.mark.parametrize("committed", [0, 3, 24, 100])
def test_block_attention_sees_its_window_and_its_block(draw, committed):
    q = torch.randn(B, W, H, D, generator=draw)
    k, v = torch.randn(2, B, W, G, D, generator=draw)
    ck, cv = torch.randn(2, B, C, G, D, generator=draw)
    position = committed - C + torch.arange(C)
    position = torch.where(position >= 0, position, -1).expand(B, C)
    ck[position < 0] = float("nan")
    cv[position < 0] = float("nan")
    rows = committed + torch.arange(W).expand(B, W)
    arguments = (q, k, v, ck, cv, position, rows)
    got = torch_block.block_attention(*arguments, window=C, scale=D**-0.5)
    torch.testing.assert_close(got, reference.block_attention(*arguments, window=C, scale=D**-0.5))


def test_a_requests_block_does_not_depend_on_its_neighbours(draw):
    q = torch.randn(B, W, H, D, generator=draw)
    k, v = torch.randn(2, B, W, G, D, generator=draw)
    ck, cv = torch.randn(2, B, C, G, D, generator=draw)
    position, rows = torch.arange(C).expand(B, C), C + torch.arange(W).expand(B, W)
    together = torch_block.block_attention(q, k, v, ck, cv, position, rows, window=C, scale=1.0)
    for b in range(B):
        one = slice(b, b + 1)
        alone = torch_block.block_attention(
            q[one], k[one], v[one], ck[one], cv[one], position[one], rows[one], window=C, scale=1.0
        )
        assert torch.equal(alone[0], together[b])


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_selector_walk_follows_its_own_choices(draw, temperature):
    vocab, rank, top = 50, 6, 5
    unary = torch.randn(B, W - 1, top, generator=draw).sort(dim=-1, descending=True).values
    ids = torch.stack([torch.randperm(vocab, generator=draw)[:top] for _ in range(B * (W - 1))]).view(B, W - 1, top)
    arguments = (
        unary,
        ids,
        torch.randn(B, W - 1, rank, generator=draw),
        *torch.randn(2, vocab, rank, generator=draw),
        torch.tensor([3, 9, 11]),
        torch.full((B,), temperature),
        torch.rand(B, W - 1, generator=draw),
    )
    got, want = torch_block.selector_walk(*arguments), reference.selector_walk(*arguments)
    assert torch.equal(got[0], want[0])
    torch.testing.assert_close(got[1], want[1])
    torch.testing.assert_close(got[1].sum(dim=-1), torch.ones(B, W - 1))
