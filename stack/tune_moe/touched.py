"""Share of the experts that a step touches, counted on recorded routes: `python -m stack.tune_moe.touched ROUTES`.

Where most experts are touched a step reads most of their weights, so a decode number says little without this share. A
batch of N requests and width W is N neighbouring requests of a recording with the first W rows of each. Exit codes: 0,
or 2 with one sentence for a mistake of the user.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stack.core.errors import EngineError
from stack.kernels.moe.routes import LayerRoutes, Routes, read_routes

REQUESTS = (1, 2, 4, 8, 16, 24, 32, 48, 56, 64, 80, 96, 117, 128, 140, 192, 264)
WIDTHS = (1, 6, 8)
SAMPLES = 16
"""Batches that are counted in each layer."""


def main(arguments: list[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m stack.tune_moe.touched", description="Share of the experts that a step touches."
    )
    parser.add_argument("routes", type=Path, help="file of kernels.moe_routes")
    options = parser.parse_args(arguments)
    try:
        sys.stdout.write(json.dumps(touched(read_routes(options.routes))) + "\n")
    except EngineError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


def touched(routes: Routes) -> dict[str, Any]:
    """Mean and least share over layers and batches, for each number of requests and width that was recorded."""
    shares = []
    for width in WIDTHS:
        layers = [blocks for layer in routes.layers.values() if len(blocks := blocks_of(layer, width))]
        for requests in REQUESTS:
            found = [share for blocks in layers for share in _shares(blocks, requests, routes.num_experts)]
            if found:
                mean = sum(found) / len(found)
                shares.append({"width": width, "requests": requests, "mean": mean, "least": min(found)})
    return {
        "schema": "experts_touched/1",
        "source": f"{routes.notes.get('num_steps', '?')} recorded steps of {routes.notes.get('model', '?')}, "
        f"{routes.notes.get('weights', '?')} weights, {len(routes.layers)} layers, {routes.num_experts} experts",
        "shares": shares,
    }


def blocks_of(layer: LayerRoutes, width: int) -> Tensor:
    """Neighbouring rows of one request cut to `width`: ids [N, W, K]. Requests with fewer rows are left out."""
    request_R = layer.request_R
    starts = torch.cat([torch.zeros(1, dtype=torch.long), 1 + torch.nonzero(request_R.diff()).flatten()])
    lengths = torch.cat([starts[1:], torch.tensor([len(request_R)])]) - starts
    kept = starts[lengths >= width]
    return layer.ids_RK[kept[:, None] + torch.arange(width)]


def _shares(blocks_NWK: Tensor, requests: int, num_experts: int) -> list[float]:
    count = len(blocks_NWK)
    if requests > count:
        return []
    num = min(SAMPLES, count // requests)
    starts = [index * (count - requests) // max(1, num - 1) for index in range(num)]
    batches = (blocks_NWK[start : start + requests] for start in starts)
    return [len(torch.unique(batch[batch >= 0])) / num_experts for batch in batches]


if __name__ == "__main__":
    sys.exit(main())
