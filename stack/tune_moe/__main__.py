"""`python -m stack.tune_moe --routes FILE --out TABLE`: search tiles of the expert products on this GPU.

    # record routes while something is served, eagerly: kernels.moe_routes=FILE, graphs.decode=false
    np1d tune moe --routes FILE --rows 56,128,1056 --out stack/kernels/moe/configs/tuned_decode.json

Synthetic routes (balanced, power:1.2) stand in where nothing was recorded, and the table says so. An interrupted search
goes on where it was. Exit codes: 0 done, 3 time is up and the same command goes on, 2 a mistake of the user.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from stack.config import EngineConfig, with_settings
from stack.core.errors import ConfigError, EngineError
from stack.kernels.moe.routes import Routes, drawn_routes, read_routes
from stack.kernels.moe.tables import FOLDER, ExpertShape
from stack.models.loading import expert_shape, model_geometry
from stack.tune_moe.search import Space
from stack.tune_moe.tuning import Job, Layer, tune


def main(arguments: Sequence[str] | None = None, open_layer: Callable[[ExpertShape], Layer] | None = None) -> int:
    """The command line. `open_layer` stands in for this machine's GPU."""
    options = _parser().parse_args(arguments)
    try:
        job = _job(options, "cpu" if open_layer else "cuda")
        left = tune(job, (open_layer or _gpu_layer)(job.shape))
    except EngineError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    if left:
        sys.stderr.write(f"time is up; not tuned yet: {', '.join(map(str, left))} rows. The same command goes on.\n")
        return 3
    sys.stderr.write(f"{job.out}: tiles for {len(job.rows)} row counts; kernels.moe_table={job.out} uses them\n")
    return 0


def _job(options: argparse.Namespace, device: str) -> Job:
    if device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("tiles are tuned on the GPU that will use them, and there is none here")
    settings = {"model.path": options.model, "model.weights": "random", "model.device": device}
    config = with_settings(EngineConfig(), settings)
    shape = expert_shape(config, model_geometry(config), torch.device(device))
    routes = _routes(options.routes, shape)
    if routes.num_experts != shape.experts:
        raise ConfigError(
            f"{options.routes} has routes of {routes.num_experts} experts, {options.model} {shape.experts}"
        )
    return Job(
        shape=shape,
        versions=_versions(),
        routes=routes,
        rows=options.rows,
        space=Space(rows=options.tile_rows),
        num_routes=options.num_routes,
        limit_s=options.limit_s,
        out=options.out,
        journal=options.journal or options.out.with_suffix(".journal.jsonl"),
    )


def _routes(text: str, shape: ExpertShape) -> Routes:
    if text == "balanced" or text.startswith("power:"):
        return drawn_routes(text, shape.experts, shape.choices)
    return read_routes(Path(text))


def _versions() -> dict[str, str]:
    versions = {"torch": str(torch.__version__)}
    try:
        import triton
    except ImportError:
        return versions
    return {**versions, "triton": triton.__version__}


def _gpu_layer(shape: ExpertShape) -> Layer:
    from stack.tune_moe.measure import GpuLayer

    return GpuLayer(shape)


def _counts(text: str) -> tuple[int, ...]:
    counts = tuple(int(part) for part in text.split(","))
    if not counts or min(counts) < 1:
        raise argparse.ArgumentTypeError("row counts are whole numbers from 1, with commas")
    return counts


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="np1d tune moe", description=__doc__, formatter_class=_Raw)
    parser.add_argument("--routes", required=True, help="file of kernels.moe_routes, or balanced, or power:EXPONENT")
    parser.add_argument(
        "--model", default="workloads/checkpoints/quarter", help="folder whose config.json has the shape"
    )
    parser.add_argument(
        "--rows", type=_counts, default=(1, 8, 32, 56, 128, 264, 512, 1056, 2112), help="numbers of rows to tune"
    )
    parser.add_argument("--tile-rows", type=_counts, default=Space().rows, help="rows of a tile to try")
    parser.add_argument("--num-routes", type=int, default=6, help="routes to tune on; half as many confirm")
    parser.add_argument("--out", type=Path, default=FOLDER / "tuned_decode.json", help="the table")
    parser.add_argument("--journal", type=Path, help="timings to go on from; default: beside the table")
    parser.add_argument(
        "--limit-s", type=float, default=86400.0, help="stop after this time; the journal keeps what was timed"
    )
    return parser


class _Raw(argparse.RawDescriptionHelpFormatter):
    """Keeps the lines of the description."""


if __name__ == "__main__":
    sys.exit(main())
