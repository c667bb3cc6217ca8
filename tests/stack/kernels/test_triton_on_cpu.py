"""Triton kernels agree with their references in Triton's interpreter, in FP32, which is all that it computes rightly.

The interpreter is chosen when kernels are imported, so each check runs in a process of its own.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

pytestmark = pytest.mark.slow

PRELUDE = """
import torch
from types import SimpleNamespace
from triton.runtime import interpreter

torch.set_num_threads(1)
torch.cuda.get_device_properties = lambda device: SimpleNamespace(multi_processor_count=132)
patch = interpreter._patch_lang_tensor

def patched(tensor, scope):  # NumPy 2.4 no longer takes an array of one number for a number
    patch(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

interpreter._patch_lang_tensor = patched
"""

PARTIAL = """
from stack.kernels.sparse_mla.reference import sparse_mla
from stack.kernels.sparse_mla.triton_partial import attend
torch.manual_seed(0)
q, pool = torch.randn(3, 18, 64), torch.randn(9, 16, 80)[:, :, :64]
index = torch.randint(16, 144, (3, 132), dtype=torch.int32)
index[0, 50:] = -1
index[1] = -1
index[2, ::3] = -1
want = sparse_mla(q, pool, index, scale=0.3)
for tile in (32, 128):
    for parts in (1, 2):
        error = (attend(q, pool, index, 0.3, tile, parts) - want).abs().max().item()
        assert error < 1e-5, (tile, parts, error)
"""

FLAT = """
from stack.kernels.sparse_mla.flat_index import flat_index, flat_rows
torch.manual_seed(0)
for apart, slots in ((256, 16), (8, 16), (64, 1)):  # neighbours of the flat tensor overlap
    pool = torch.randn(9, slots * 64 + apart)[:, : slots * 64].unflatten(1, (slots, 64))
    index = torch.randint(slots, 9 * slots, (5, 70), dtype=torch.int32)
    index[1] = -1
    index[2, 3:] = -1
    rows, places = flat_rows(pool), flat_index(index, pool, 128)
    assert places.shape == (5, 1, 128) and (places[:, 0, 70:] == -1).all()
    valid, at = index >= 0, index.clamp(min=0)
    assert torch.equal(places[:, 0, :70] >= 0, valid)
    assert torch.equal(rows[places[:, 0, :70].clamp(min=0)][:, :, 0][valid], pool[at // slots, at % slots][valid])
"""

SEGMENTS = """
from stack.kernels.kda_chunk import segment_scan, segments
torch.manual_seed(0)
segments.TARGET_SEGMENTS, segments.MIN_CHUNKS = 8, 1
T, H, C = 70 + 300, 2, 64
cut, o = segments.begin_pass(torch.zeros(T + 3, H, 128), (70, 0, 300))
w, u, qg, kg = (torch.randn(T, H, 128) * 0.1 for _ in range(4))
scores, ends = torch.randn(T, H, C) * 0.1, -torch.rand(cut.chunk_indices.shape[0], H, 128)
state = torch.randn(4, H, 128, 128)
slot, resumes = torch.tensor([2, 3], dtype=torch.int32), torch.tensor([True, False])
want, states, begin = torch.zeros(T + 3, H, 128), state.clone(), 0
states[3] = 0
for n, (request, _) in enumerate(cut.chunk_indices.tolist()):
    end = int(cut.chunk_ends[n]) + 1
    a, b, c, d, e = (x[begin:end].transpose(0, 1) for x in (w, u, qg, kg, scores))
    s = states[2 + request]
    fresh = b - a @ s
    want[begin:end] = (e[:, :, : end - begin].tril() @ fresh + c @ s).transpose(0, 1)
    states[2 + request] = s * torch.exp2(ends[n])[..., None] + d.transpose(1, 2) @ fresh
    begin = end
assert cut.summarised.shape[0] >= 2
segment_scan.run_segments(segment_scan.Prepared(w, u, qg, kg, scores, ends), cut, o, state, slot, resumes)
assert (o - want).abs().max() < 1e-4, (o - want).abs().max()
assert (state - states).abs().max() < 1e-4
"""

BLOCK = """
from stack.kernels.cases import Draw
from stack.kernels.dflash_block import cases, reference, triton_block
for case in cases.CASES:
    call = case.build(Draw("cpu", torch.float32))
    got, want = (getattr(m, case.function)(*call.args, **call.kwargs) for m in (triton_block, reference))
    for a, b in zip(got, want) if isinstance(got, tuple) else [(got, want)]:
        assert a.dtype == b.dtype and (a - b).abs().max() < 1e-5, (case.name, (a - b).abs().max())
    if case.name == "rings":
        for b in range(2):
            of_b = [x if i in (3, 4) else x[b : b + 1] for i, x in enumerate(call.args)]
            assert torch.equal(triton_block.block_attention(*of_b, **call.kwargs)[0], got[b]), "neighbours count"
        half = [x.half() if x.is_floating_point() else x for x in call.args]
        got = triton_block.block_attention(*half, **call.kwargs)
        want = reference.block_attention(*(x.float() if x.dtype == torch.half else x for x in half), **call.kwargs)
        share = (got == want.half()).float().mean().item()
        assert share > 0.99, ("rounded more than once", share)
x = torch.randn(3, 5, 128)
gain, options = torch.rand(2, 128), {"num_queries": 4, "eps": 1e-5, "theta": 10000.0, "norm": None}
far = x, gain, torch.tensor([65536, 131071, 1000003])
assert (triton_block.norm_rope(*far, **options) - reference.norm_rope(*far, **options)).abs().max() < 5e-6
"""

BESIDE = """
from types import SimpleNamespace
from stack.kernels.cases import Draw
from stack.kernels.moe import cases, triton_beside
from stack.kernels.moe.reference import moe
from stack.kernels.moe.routing import Places
from stack.kernels.moe.tables import Launch, Tile
from stack.kernels.swiglu.triton_rows import swiglu
def placed(ids, experts, align):
    layout, source, position = [], [], torch.full(ids.shape, -1, dtype=torch.int32)
    for expert in range(experts):
        entries = (ids.flatten() == expert).nonzero()[:, 0].tolist()
        for entry in entries:
            position.view(-1)[entry] = len(source)
            source.append(entry)
            layout.append(expert)
        short = -len(entries) % align
        source, layout = source + [-1] * short, layout + [expert] * short
    source, layout = source + [-1] * align, layout + [-1] * align
    return Places(position, torch.tensor(layout, dtype=torch.int32), torch.tensor(source, dtype=torch.int32))
tile = Tile(16, Launch(4, 2), Launch(4, 2))
for rows, inner, narrow in ((17, 256, 128), (5, 128, 128)):
    draw = Draw("cpu", torch.float32)
    experts, shared = cases.matrices(draw, False, inner, 3), cases.matrices(draw, False, narrow)
    x, weights = draw.normal(rows, 256), draw.uniform(rows, 2)
    ids = draw.ints([e for _ in range(rows) for e in draw.order(3)[:2]]).view(rows, 2)
    ids[-1] = -1
    places = placed(ids, 3, 16)
    got = triton_beside.expert_rows(
        x, *triton_beside.products(experts, shared), places, tile, lambda y: swiglu(y, limit=cases.LIMIT)
    )
    sums = got[: len(places.layout_M)][places.position_TK.long()] * torch.where(ids >= 0, weights, 0.0)[..., None]
    sums = torch.where((ids >= 0)[..., None], sums, 0.0).sum(1) + got[len(places.layout_M) :]
    want = moe(x, ids, weights, experts, limit=cases.LIMIT, swiglu_quant=None, shared=cases.Shared(shared))
    error = ((sums - want).abs().max() / want.std()).item()
    assert error < 1e-4, (rows, error)
"""


@pytest.mark.parametrize(
    "check",
    [PARTIAL, FLAT, SEGMENTS, BLOCK, BESIDE],
    ids=["sparse_mla", "flat_index", "kda_segments", "dflash_block", "moe_beside"],
)
def test_agrees_in_the_interpreter(check: str) -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(Path.cwd())}
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + check],
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
