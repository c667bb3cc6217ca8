"""Times one layer of experts on this GPU, and holds its result against the formula. The only part that needs a GPU.

A layer is `triton_grouped` from the sort to the weighted sum, captured as a graph. Between two replays 256 MiB are
written, so that neither weights nor rows come out of the L2 cache. Weights are drawn; their values change no time.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from stack.kernels.catalog import OPS
from stack.kernels.moe.tables import ExpertShape, Tile, TileTable
from stack.kernels.quantized import GROUP, Fp8Weight
from stack.layers.weights import Experts
from stack.models.random_weights import RandomWeights
from stack.tune_moe.search import TileError, Timer

_REPLAYS = 10
_LIMIT = 10.0


class GpuLayer:
    """The experts of `shape`, drawn on the device."""

    def __init__(self, shape: ExpertShape, device: str = "cuda") -> None:
        from stack.kernels.moe import triton_grouped

        weights = RandomWeights(0, torch.bfloat16, torch.device(device), is_fp8=shape.weights == "fp8")
        self._shape = shape
        self._device = device
        self._experts = weights.experts("", shape.experts, shape.inner, shape.width)
        self._module = triton_grouped
        self._activation = OPS["swiglu_quant"].bind("auto", device)
        self._flush = torch.empty(64 * 2**20, dtype=torch.int32, device=device)

    def untuned(self, num_rows: int) -> Tile:
        """What the rule picks."""
        return self._module.untuned_tile(num_rows * self._shape.choices, self._shape.experts)

    def timer(self, num_rows: int, routes: dict[str, list[Tensor]]) -> Timer:
        """Times these routes by part and number."""
        draw = torch.Generator(self._device).manual_seed(num_rows)
        x_TC = torch.randn(num_rows, self._shape.width, generator=draw, device=self._device).to(torch.bfloat16)
        weights_TK = torch.rand(num_rows, self._shape.choices, generator=draw, device=self._device)
        ids = {part: [ids_TK.to(self._device) for ids_TK in batches] for part, batches in routes.items()}

        def timed(tile: Tile, part: str, route: int) -> float:
            return self._median_us(lambda: self._layer(x_TC, ids[part][route], weights_TK, self._experts, tile))

        return timed

    def error(self, tile: Tile) -> float:
        """Relative distance from the formula with block scales that are all different powers of two."""

        def layer(x_TC: Tensor, ids_TK: Tensor, weights_TK: Tensor, experts: Any) -> Tensor:
            return self._layer(x_TC, ids_TK, weights_TK, experts, tile)

        return error_of(layer, self._activation, torch.bfloat16, self._device)

    def _layer(self, x_TC: Tensor, ids_TK: Tensor, weights_TK: Tensor, experts: Any, tile: Tile) -> Tensor:
        table = TileTable("under test", self._shape, {1: tile})
        return self._module.moe(
            x_TC, ids_TK, weights_TK, experts, limit=_LIMIT, swiglu_quant=self._activation, tiles=table
        )

    def _median_us(self, run: Callable[[], object]) -> float:
        graph = _captured(run)
        events = []
        for _ in range(_REPLAYS + 2):
            self._flush.zero_()
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            graph.replay()
            end.record()
            events.append((begin, end))
        torch.cuda.synchronize()
        times = sorted(begin.elapsed_time(end) * 1e3 for begin, end in events[2:])
        return times[len(times) // 2]


def _captured(run: Callable[[], object]) -> torch.cuda.CUDAGraph:
    """After an eager run, which compiles. Raises TileError for a tile that the device cannot hold."""
    from triton.compiler.errors import CompilationError
    from triton.runtime.errors import OutOfResources, PTXASError

    try:
        run()
    except (CompilationError, OutOfResources, PTXASError) as error:
        raise TileError(str(error).splitlines()[0]) from None
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph


def error_of(
    moe: Callable[[Tensor, Tensor, Tensor, Any], Tensor],
    swiglu_quant: Any,
    dtype: torch.dtype,
    device: str,
    *,
    rows: int = 40,
) -> float:
    """||moe - formula|| / ||formula|| over FP8 experts whose block scales differ by up to a factor of 256.

    A product that applies one scale to two blocks, or the wrong block's, cannot come close.
    """
    experts, width, inner = 8, 512, 256
    draw = torch.Generator().manual_seed(3)
    x_TC = torch.randn(rows, width, generator=draw).to(dtype).to(device)
    ids_TK = torch.stack([torch.randperm(experts, generator=draw)[:2] for _ in range(rows)]).to(torch.int32)
    ids_TK[-1:] = -1
    weights_TK = torch.rand(rows, 2, generator=draw) * (ids_TK >= 0)
    stacked = Experts(
        _uneven(draw, experts, 2 * inner, width, device=device), _uneven(draw, experts, width, inner, device=device)
    )
    call = (x_TC, ids_TK.to(device), weights_TK.to(device), stacked)
    from stack.kernels.moe import reference

    wanted = reference.moe(*call, limit=_LIMIT, swiglu_quant=swiglu_quant).double()
    return float((moe(*call).double() - wanted).norm() / wanted.norm())


def _uneven(draw: torch.Generator, *shape: int, device: str) -> Fp8Weight:
    codes = torch.randn(shape, generator=draw).to(torch.float8_e4m3fn)
    blocks = (shape[0], shape[1] // GROUP, shape[2] // GROUP)
    exponent = torch.randint(-8, 1, blocks, generator=draw)
    scale = torch.exp2(exponent.float()) * shape[2] ** -0.5
    return Fp8Weight(codes.to(device), scale.to(device))
