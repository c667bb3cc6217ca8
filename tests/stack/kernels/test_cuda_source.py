"""Loading compiled kernels: two kernels over one function of the driver each keep the shared memory that they need."""

import ctypes
from pathlib import Path

import pytest
import torch

from stack.kernels import cuda_source
from stack.kernels.index_select.top_pools import STAGED, top_pools


class Driver:
    """The two calls of the CUDA driver that loading makes; remembers the attribute as the driver does."""

    def __init__(self):
        self.shared = {}

    def cuModuleGetFunction(self, function, module, name):
        function._obj.value = hash(name) & 0xFFFF
        return 0

    def cuFuncSetAttribute(self, function, attribute, value):
        self.shared[function.value] = value
        return 0


@pytest.mark.parametrize("sizes", [(65536, 32768), (32768, 65536), (32768, 65536, 20000)])
def test_the_largest_need_of_a_function_is_reserved_in_whatever_order_kernels_load(monkeypatch, tmp_path, sizes):
    driver = Driver()
    monkeypatch.setattr(cuda_source, "driver", lambda: driver)
    monkeypatch.setattr(cuda_source, "_module", lambda cubin: ctypes.c_void_p(1))
    monkeypatch.setattr(cuda_source, "compile_source", lambda source, defines: tmp_path / "one.cubin")
    for size in sizes:
        cuda_source._load(Path("one.cu"), (), "select", size)
    assert list(driver.shared.values()) == [max(sizes)]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_long_and_short_score_rows_take_turns():
    """Both forms of the top-k are one function: the long one still launches after the short one was loaded."""
    for columns in (STAGED, 512, STAGED):
        scores = torch.randn(2, columns, device="cuda")
        position = torch.tensor([4 * columns - 1] * 2, dtype=torch.int32, device="cuda")
        table = torch.arange(4 * columns // 256, dtype=torch.int32, device="cuda").expand(2, -1)
        slot, request = (
            torch.ones(1, dtype=torch.int32, device="cuda"),
            torch.zeros(2, dtype=torch.int32, device="cuda"),
        )
        out = torch.full((2, 320), -7, dtype=torch.int32, device="cuda")
        top_pools(scores, table, slot, request, position, out, kpool=4, budget=64, page_size=256)
        chosen = set((out[0, :256] // 4).tolist())
        assert chosen == set(scores[0].topk(64).indices.tolist())
