"""Inputs of linear attention: convolution windows, recurrent states, replay rings."""

import torch
from torch import Tensor

from stack.core.memory import ReplayRing
from tools.gpu.micro.inputs.drawing import BF16, F32, I32, Call, packing, poisoned_rows

KDA_VERIFY = (
    "cuda_chunk", "cuda_chunk_fast", "cuda_chain", "cuda_stream", "cuda_stream_chunk", "cuda_stream_roles",
)  # fmt: skip
KDA_COMMIT = ("cuda_chunk", "cuda_fold", "cuda_fold_fast", "cuda_stream", "cuda_stream_chunk")
KDA_CHUNK = ("by_requests", "cuda_prepared", "split_chunk", "flash_kda", "fla_chunk")


def kda_parameters(device: str, heads: int) -> list[Tensor]:
    """Convolution weight, A_log and dt_bias."""
    channels = 3 * heads * 128
    weight = torch.randn(channels, 4, device=device) * 0.5
    return [weight, torch.randn(heads, device=device) * 0.3, torch.randn(heads, 128, device=device) - 2]


def kda_memory(device: str, slots: int, heads: int, layers: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """States and windows of all layers, slot 0 all zeros."""
    state = (torch.randn(slots, heads, layers, 128, 128, device=device) * 0.2).to(dtype)
    conv = torch.randn(slots, heads, layers, 3, 128, 3, device=device).to(BF16)
    state[0], conv[0] = 0, 0
    return state, conv


def kda_rows(device: str, rows: int, heads: int) -> list[Tensor]:
    """x [T, X], f [T, H, D] and b [T, H] as the projections leave them: views of one wide row."""
    channels = 3 * heads * 128
    wide = torch.randn(rows, channels + heads + 256, device=device).to(BF16)
    f = torch.randn(2, rows, heads, 128, device=device).to(BF16)[0]
    return [wide[:, :channels], f, wide[:, channels : channels + heads]]


def kda_conv(device: str, lens: list[int], padding: int, heads: int) -> Call:
    """Packed requests, every second one resuming."""
    pack = packing(lens, [0] * len(lens), padding, 64, len(lens) + 2, device)
    _, conv = kda_memory(device, len(lens) + 2, heads, 1, F32)
    resumes = torch.tensor([i % 2 == 0 for i in range(pack.slot.shape[0])], device=device)
    x = kda_rows(device, sum(lens) + padding, heads)[0]
    poisoned_rows(padding, x)
    args = [
        x,
        kda_parameters(device, heads)[0],
        conv[:, :, 0],
        pack.slot,
        pack.start,
        pack.request,
        pack.position,
        resumes,
    ]
    return Call(args, {}, lambda args: [args[2]])


def kda_chunk(device: str, lens: list[int], padding: int, heads: int, dtype: torch.dtype = F32) -> Call:
    """Packed requests, every second one resuming."""
    rows = sum(lens) + padding
    pack = packing(lens, [0] * len(lens), padding, 64, len(lens) + 2, device)
    state, _ = kda_memory(device, len(lens) + 2, heads, 1, dtype)
    q, k, v = (torch.randn(rows, heads, 128, device=device) for _ in range(3))
    q, k = (x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt() for x in (q, k))
    _, f, b = kda_rows(device, rows, heads)
    _, a_log, dt_bias = kda_parameters(device, heads)
    resumes = torch.tensor([i % 2 == 0 for i in range(pack.slot.shape[0])], device=device)
    poisoned_rows(padding, q, k, v, f, b)
    args = [
        (q * 128**-0.5).to(BF16),
        k.to(BF16),
        v.to(BF16),
        f,
        b,
        a_log,
        dt_bias,
        state[:, :, 0],
        pack.slot,
        pack.start,
        resumes,
    ]
    return Call(args, {"lower_bound": -5.0, "extend_lens": pack.lens}, lambda args: [args[7]])


def kda_decode(device: str, requests: int, heads: int, dtype: torch.dtype) -> Call:
    """One row a request; the last is padding."""
    state, conv = kda_memory(device, requests + 1, heads, 2, dtype)
    slot = torch.randperm(requests, device=device).to(I32) + 1
    slot[-1] = 0
    weight, a_log, dt_bias = kda_parameters(device, heads)
    rows = kda_rows(device, requests, heads)
    poisoned_rows(1, *rows)
    args = [*rows, weight, a_log, dt_bias, state[:, :, 1], conv[:, :, 1], slot]
    return Call(args, {"lower_bound": -5.0}, lambda args: [args[6], args[7]])


def empty_ring(device: str, layers: int, entries: int, width: int, heads: int) -> ReplayRing:
    """A replay ring of zeros over all layers."""
    shape = (layers, entries, width, heads, 128)
    return ReplayRing(
        k_NWHD=torch.zeros(shape, device=device, dtype=BF16), v_NWHD=torch.zeros(shape, device=device, dtype=BF16),
        g_NWHD=torch.zeros(shape, device=device), beta_NWH=torch.zeros(shape[:-1], device=device),
        x_NWX=torch.zeros((*shape[:3], 3 * heads * 128), device=device, dtype=BF16),
    )  # fmt: skip


def layer_of(ring: ReplayRing, layer: int) -> ReplayRing:
    """One layer's view."""
    return ReplayRing(**{name: getattr(ring, name)[layer] for name in ReplayRing.__slots__})


def ring_tensors(ring: ReplayRing) -> list[Tensor]:
    """The fields, in order."""
    return [getattr(ring, name) for name in ReplayRing.__slots__]


def kda_verify(device: str, requests: int, width: int, heads: int, dtype: torch.dtype, snapshots: bool = False) -> Call:
    """`width` rows a request; the last request is padding."""
    state, conv = kda_memory(device, requests + 1, heads, 2, dtype)
    slot = torch.randperm(requests, device=device).to(I32) + 1
    slot[-1] = 0
    entry = torch.where(slot > 0, torch.randperm(requests, device=device).to(I32) + 1, 0).to(I32)
    weight, a_log, dt_bias = kda_parameters(device, heads)
    ring = layer_of(empty_ring(device, 2, requests + 1, width, heads), 1)
    kept = torch.zeros(requests + 1, width, heads, 128, 128, device=device, dtype=dtype) if snapshots else None
    rows = kda_rows(device, requests * width, heads)
    poisoned_rows(width, *rows)
    args = [
        *rows,
        weight,
        a_log,
        dt_bias,
        state[:, :, 1],
        conv[:, :, 1],
        slot,
        entry,
        ring,
    ]
    options = {"width": width, "lower_bound": -5.0, "snapshots_NWHKV": kept}
    written = ("snapshots_NWHKV",) if snapshots else ()
    return Call(args, options, lambda args: [args[6], args[7], *ring_tensors(args[10])], written=written)


def kda_commit(
    device: str,
    requests: int,
    width: int,
    heads: int,
    layers: int,
    dtype: torch.dtype,
    accepted: int | None = None,
    snapshots: bool = False,
) -> Call:
    """A filled ring and how many rows of it each request keeps; `snapshots`: states after each row lie there."""
    state, conv = kda_memory(device, requests + 1, heads, layers, dtype)
    slot = torch.randperm(requests, device=device).to(I32) + 1
    slot[-1] = 0
    entry = torch.where(slot > 0, torch.randperm(requests, device=device).to(I32) + 1, 0).to(I32)
    ring = empty_ring(device, layers, requests + 1, width, heads)
    for tensor in (ring.k_NWHD, ring.v_NWHD, ring.x_NWX):
        tensor.copy_(torch.randn(tensor.shape, device=device))
    ring.g_NWHD.copy_(-2 * torch.rand(ring.g_NWHD.shape, device=device))
    ring.beta_NWH.copy_(torch.rand(ring.beta_NWH.shape, device=device))
    count = torch.randint(0, width + 1, (requests,), device=device, dtype=I32)
    if accepted is not None:
        count.fill_(accepted)
    shape = (layers, requests + 1, width, heads, 128, 128)
    kept = {"snapshots_LNWHKV": torch.randn(shape, device=device).to(dtype)} if snapshots else {}
    return Call([state, conv, ring, slot, entry, count], kept, lambda args: [args[0], args[1]])
