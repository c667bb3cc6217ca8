"""Inputs of the draft's own kernels at the quarter draft's sizes."""

import torch

from stack.kernels.catalog import OPS
from tools.gpu.micro.inputs.drawing import BF16, I32, Call

DRAFT_HEADS, DRAFT_KV_HEADS, DRAFT_DIM, DRAFT_WIDTH = 8, 2, 128, 8
"""Of the quarter draft; its rows are those of a block."""


def draft_attention(device: str, lengths: list[int], window: int, page: int) -> Call:
    """Blocks behind `lengths` committed tokens in pages of `page` rows, or in rings of the window for 0. Rows of the
    pools that none of a request's rows sees are NaN."""
    count, each = len(lengths), -(-max(lengths) // page) if page else 1
    size = (page or window) * DRAFT_KV_HEADS * DRAFT_DIM
    pools = [torch.full((count * each + 1, size + 256), float("nan"), device=device, dtype=BF16) for _ in range(2)]
    k, v = (pool[:, 256:].unflatten(1, (page or window, DRAFT_KV_HEADS, DRAFT_DIM)) for pool in pools)
    order = (torch.randperm(count * each, device=device) + 1).view(count, each)
    length, back = torch.tensor(lengths, device=device), torch.arange(window, device=device).expand(count, window)
    if page:
        position = length[:, None] - window + back
        first, second = order.gather(1, position.clamp(min=0) // page), position.clamp(min=0) % page
    else:
        position = length[:, None] - 1 - (length[:, None] - 1 - back) % window
        first, second = order.expand(count, window), back
    seen = (position >= 0) & (position > length[:, None] - window)
    for pool in (k, v):
        values = torch.randn(int(seen.sum()), DRAFT_KV_HEADS, DRAFT_DIM, device=device)
        pool[first[seen], second[seen]] = values.to(BF16)
    rows = torch.randn(count, DRAFT_WIDTH, DRAFT_HEADS + 2 * DRAFT_KV_HEADS, DRAFT_DIM, device=device).to(BF16)
    own = rows.split((DRAFT_HEADS, DRAFT_KV_HEADS, DRAFT_KV_HEADS), dim=2)
    places = [torch.where(position >= 0, position, -1).int(), (length[:, None] + back[:, :DRAFT_WIDTH]).int()]
    options = {"window": window, "scale": DRAFT_DIM**-0.5}
    return Call([*own, k, v, first, second, *places], options, function="block_attention")


def draft_rotation(device: str, rows: int) -> Call:
    """Query and key heads cut out of wider rows. `norm` is what an implementation that has none of its own is given."""
    heads = DRAFT_HEADS + DRAFT_KV_HEADS
    x = torch.randn(rows, heads + DRAFT_KV_HEADS, DRAFT_DIM, device=device).to(BF16)[:, :heads]
    gain = (torch.rand(2, DRAFT_DIM, device=device) + 0.5).to(BF16)
    norm = OPS["rms_norm"].module("torch_rows" if device == "cpu" else "triton_rows").rms_norm
    options = {"num_queries": DRAFT_HEADS, "eps": 1e-5, "theta": 10000.0, "norm": norm}
    return Call([x, gain, torch.arange(rows, device=device, dtype=I32)], options, function="norm_rope")


def draft_convolution(device: str, requests: int, channels: int) -> Call:
    """The taps of a convolution's second side."""
    y = torch.randn(requests, DRAFT_WIDTH, channels, device=device).to(BF16)
    dynamic = torch.randn(requests, DRAFT_WIDTH, 2, 2, channels // 16, device=device).to(BF16)[:, :, 1]
    return Call([y, torch.randn(2, channels, device=device).to(BF16), dynamic], function="dynamic_conv")


def draft_walk(device: str, requests: int, vocab: int) -> Call:
    """Every second request greedy; pending tokens are a column of the block."""
    drafts, top, rank = DRAFT_WIDTH - 1, 16, 256
    unary = torch.randn(requests, drafts, top, device=device).sort(dim=-1, descending=True).values
    ids = torch.rand(requests, drafts, vocab, device=device).topk(top, dim=-1).indices
    z = torch.randn(requests, drafts, rank, device=device).to(BF16)
    codebooks = [(torch.randn(vocab, rank, device=device) * 0.3).to(BF16) for _ in range(2)]
    anchor = torch.randint(vocab, (requests, DRAFT_WIDTH), device=device)[:, 0]
    heat = torch.arange(requests, device=device) % 2 * 0.7
    uniform = torch.rand(requests, drafts, device=device)
    return Call([unary, ids, z, *codebooks, anchor, heat, uniform], function="selector_walk")
