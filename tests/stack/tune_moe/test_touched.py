"""Which share of the experts batches of recorded requests touch."""

import pytest
import torch

from stack.kernels.moe.routes import LayerRoutes, Routes
from stack.tune_moe.touched import blocks_of, touched

WIDTH, REQUESTS = 8, 6


@pytest.fixture
def routes():
    """Request r chooses experts 2r and 2r + 1 in its first row, and the same two in every other."""
    ids = torch.arange(REQUESTS).repeat_interleave(WIDTH)[:, None] * 2 + torch.tensor([0, 1])
    request = torch.arange(1, REQUESTS + 1).repeat_interleave(WIDTH)
    return Routes({3: LayerRoutes(ids.to(torch.int16), request)}, num_experts=16, notes={"num_steps": "1"})


def test_a_share_counts_distinct_experts_of_distinct_requests(routes):
    found = {(one["requests"], one["width"]): one["mean"] for one in touched(routes)["shares"]}
    assert found[1, 8] == pytest.approx(2 / 16)
    assert found[4, 1] == found[4, 8] == pytest.approx(8 / 16)
    assert (8, 1) not in found, "no more requests were recorded"


def test_rows_of_a_request_stay_together_and_short_ones_are_left_out(routes):
    layer = routes.layers[3]
    cut = LayerRoutes(layer.ids_RK[3:], layer.request_R[3:])
    blocks = blocks_of(cut, WIDTH)
    assert blocks.shape == (REQUESTS - 1, WIDTH, 2)
    assert blocks[0].unique().tolist() == [2, 3]
    assert len(blocks_of(cut, 1)) == REQUESTS
