"""Inputs of sparse attention: what writes its pages, what selects from them, what reads them."""

import torch

from tools.gpu.micro.inputs.drawing import BF16, F32, FP8, I32, Call, packing, poisoned_rows, pool_rows, strided

SPARSE_MLA = (
    "cuda_gather", "cuda_paired", "triton_partial", "tilelang_partial", "tilelang_prefill", "tilelang_prefill_q8",
)  # fmt: skip
INDEX_SELECT = ("deep_gemm", "deep_gemm_held", "paged", "paged_wgmma", "paged_held")


def latent_write(device: str, rows: int, page: int, dtype: torch.dtype) -> Call:
    """Rows for scattered places of a strided pool; the last is padding."""
    pool = pool_rows(rows // page + 3, page, 512, dtype, device)
    write = torch.randperm((rows // page + 2) * page, device=device)[:rows] + page
    write[-1] = 0
    kv = strided(rows, 512, device) * 3
    weight = (torch.rand(512, device=device) + 0.5).to(BF16)
    return Call([kv, weight, pool, write], {"eps": 1e-5}, lambda args: [args[2]])


def index_write(
    device: str, lens: list[int], prefix: list[int], padding: int, page: int, fp8: bool, ring: int = 12
) -> Call:
    """Packed requests behind cached tokens; index keys strided over their pages."""
    pack = packing(lens, prefix, padding, page, len(lens) + 2, device)
    rows, pages = sum(lens) + padding, int(pack.table.max()) + 1
    codes = torch.zeros(pages, page // 4 + 2, 128, device=device).to(FP8 if fp8 else BF16)[:, : page // 4]
    scales = torch.zeros(pages, page // 4, device=device) if fp8 else None
    tail = torch.randn(len(lens) + 2, ring, 2, 128, device=device).to(BF16)
    wide = torch.randn(rows, 288, device=device).to(BF16)
    poisoned_rows(padding, wide)
    norm = [(torch.rand(128, device=device) + 0.5).to(BF16), (torch.randn(128, device=device) * 0.1).to(BF16)]
    ape = (torch.randn(4, 128, device=device) * 0.5).to(BF16)
    args = [
        wide[:, :128],
        wide[:, 128:256],
        *norm,
        ape,
        tail,
        codes,
        scales,
        pack.table,
        pack.slot,
        pack.request,
        pack.position,
    ]
    return Call([*args, pack.start, pack.write], {}, lambda args: [t for t in args[5:8] if t is not None])


def index_select(
    device: str,
    lens: list[int],
    prefix: list[int],
    padding: int,
    page: int,
    fp8: bool,
    budget: int = 512,
    workspace: int = 1 << 29,
) -> Call:
    """Packed requests behind cached tokens; keys and scales share their pages."""
    pack = packing(lens, prefix, padding, page, len(lens) + 2, device)
    rows, pages = sum(lens) + padding, int(pack.table.max()) + 1
    keys = torch.randn(pages, page // 4 * 132, device=device)
    q = torch.randn(rows, 32, 128, device=device).to(BF16)
    w = torch.randn(rows, 32, device=device) * 32**-0.5
    poisoned_rows(padding, q, w)
    if fp8:
        raw = torch.empty(pages, page // 4 * 132, dtype=torch.uint8, device=device)
        codes = raw[:, : page // 4 * 128].view(FP8).unflatten(1, (page // 4, 128))
        codes.copy_(keys[:, : page // 4 * 128].unflatten(1, (page // 4, 128)))
        scales = raw[:, page // 4 * 128 :].view(F32)
        scales.copy_(torch.exp2(torch.randint(-3, 3, scales.shape, device=device).float()))
    else:
        codes, scales = keys[:, : page // 4 * 128].to(BF16).unflatten(1, (page // 4, 128)), None
    longest = max(p + n for p, n in zip(prefix, lens, strict=True))
    options = {"kpool": 4, "budget": budget, "max_context": longest, "workspace_bytes": workspace}
    return Call([q, w, codes, scales, pack.table, pack.slot, pack.request, pack.position], options)


def sparse_mla(
    device: str,
    rows: int,
    heads: int,
    width: int,
    context: int,
    dtype: torch.dtype,
    page: int = 256,
    valid: int | None = None,
    contexts: int = 1,
) -> Call:
    """Queries and random sets of rows; small cases have empty, short and holed sets. With more than one of the
    `contexts`, neighbouring rows share one."""
    pool = pool_rows(contexts * -(-context // page) + 1, page, 512, dtype, device)
    index = torch.randint(page, context + page, (rows, width), device=device, dtype=I32)
    index += (torch.arange(rows, device=device) * contexts // rows * context).int()[:, None]
    if valid is not None:
        index[:, valid:] = -1
    if rows > 2 and rows < 100:
        index[0] = -1
        index[1, width // 3 :] = -1
        index[2, ::3] = -1
    q = torch.randn(rows, heads, 512, device=device).to(BF16)
    return Call([q, pool, index], {"scale": 1 / 16})
