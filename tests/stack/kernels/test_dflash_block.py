"""What the DFlash2 pieces promise beyond their cases: turns by position, no look ahead of a block, no neighbours."""

import pytest
import torch

from stack.kernels.cases import Draw
from stack.kernels.dflash_block import torch_block
from stack.kernels.dflash_block.cases import CASES
from stack.kernels.rms_norm.torch_rows import rms_norm

ATTENTION = [case for case in CASES if case.function == "block_attention"]


def test_rotation_keeps_lengths_and_leaves_position_0_alone():
    x, gain = torch.randn(4, 3, 16, generator=torch.Generator().manual_seed(17)), torch.ones(2, 16)
    position = torch.tensor([0, 1, 63, 4001])
    got = torch_block.norm_rope(x, gain, position, num_queries=2, eps=0.0, theta=10000.0, norm=rms_norm)
    torch.testing.assert_close(got[0], x[0] / x[0].square().mean(-1, keepdim=True).sqrt())
    torch.testing.assert_close(got.square().mean(-1), torch.ones(4, 3))


@pytest.mark.parametrize("case", ATTENTION, ids=lambda case: case.name)
def test_a_requests_block_does_not_depend_on_its_neighbours(case):
    call = case.build(Draw("cpu", torch.float32))
    together = torch_block.block_attention(*call.args, **call.kwargs)
    assert torch.isfinite(together).all(), "what no row sees is NaN"
    for b in range(together.shape[0]):
        of_b = [x if i in (3, 4) else x[b : b + 1] for i, x in enumerate(call.args)]
        assert torch.equal(torch_block.block_attention(*of_b, **call.kwargs)[0], together[b])


def test_a_walk_follows_its_own_choices():
    greedy = next(case for case in CASES if case.name == "greedy").build(Draw("cpu", torch.float32)).args
    unary, ids, z, predecessor, successor, anchor, *_ = greedy
    token, q = torch_block.selector_walk(*greedy)
    previous = torch.cat((anchor[:, None], token[:, :-1]), dim=1)
    score = unary + torch.einsum("ber,bekr->bek", predecessor[previous] * z, successor[ids])
    assert torch.equal(token, ids.gather(2, score.argmax(-1, keepdim=True))[..., 0])
    assert torch.equal(q.argmax(-1), score.argmax(-1)) and torch.equal(q.sum(-1), torch.ones_like(q[..., 0]))
