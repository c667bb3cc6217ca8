"""`python -m tools.gpu.transfer --gpus 0,1 --out FOLDER`: what moves between prefill and decode, and how fast.

Two instances as they serve, with pages and slots of full size; only the model that computes is cut to a few layers, so
that two fit one GPU. Prompts of one length share nothing, half, or 15 of 16 tokens. For each: bytes and descriptors of
a request, bytes a second while a write runs, the time from the last chunk's end to the end of the last write (tail),
and to decode having the request (hand-off; both instances read the host's one clock).

Exit code 1 when a request moved other bytes than the pages it lacked and one slot: a suffix must cost a suffix.
"""

import argparse
import json
import random
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stack.cache import CacheLayout, layout_from_config
from stack.config import EngineConfig, parse_settings, to_dict, with_settings
from tools.gpu.transfer.pair import Pair

PREFIXES = (0.0, 0.5, 0.9375)
NVLINK_GB_S = 216.0
"""What 4 MiB descriptors reached between two H200s of one host by NIXL alone."""
COLUMNS = (
    "GPUs", "shared", "at once", "requests", "bytes a request", "as expected", "descriptors", "GB/s",
    f"of {NVLINK_GB_S:g} GB/s", "tail p50, p95 ms", "hand-off p50, p95 ms",
)  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; writes transfer.json and transfer.md into the folder."""
    options = _parser().parse_args(arguments)
    base = with_settings(EngineConfig(), _settings(options) | parse_settings(options.set))
    halves = {
        "prefill": with_settings(base, {"role": "prefill", "cache.prefix": "hybrid_radix"}),
        "decode": with_settings(base, {"role": "decode", "cache.prefix": "kv_radix"}),
    }
    layout = layout_from_config(halves["decode"])
    rows = []
    gpus = tuple(options.gpus.split(",")) if options.gpus else ("", "")
    with Pair(options.out, {role: to_dict(config) for role, config in halves.items()}, (gpus[0], gpus[-1])) as pair:
        for shared in options.prefixes:
            for at_once in options.at_once:
                rows.append(_measure(pair, layout, options, shared, at_once))
                sys.stderr.write(f"{_line(rows[-1])}\n")
                _write(options, layout, rows)
    return 1 if any(row["num_wrong"] for row in rows) else 0


def _settings(options: argparse.Namespace) -> dict[str, Any]:
    return {
        "model.path": options.model,
        "model.weights": "random",
        "model.num_layers": options.layers,
        "model.device": "cuda" if options.gpus else "cpu",
        "cache.all_layers": True,
        "cache.page_size": options.page,
        "cache.kv_dtype": options.kv,
        "cache.state_dtype": "bfloat16",
        "cache.budget_bytes": options.budget_gib * 2**30,
        "cache.expected_context": options.prompt,
        "cache.expected_output": 64,
        "scheduler.chunk_tokens": options.chunk,
        "scheduler.max_prefill_tokens": options.chunk,
        "graphs.decode_batch_sizes": [8],
        "scheduler.max_running": 8,
        "server.host": "127.0.0.1",
    }


def _measure(
    pair: Pair, layout: CacheLayout, options: argparse.Namespace, shared: float, at_once: int
) -> dict[str, Any]:
    draw = random.Random(f"{shared} {at_once}")
    prefix = [draw.randrange(2, 1000) for _ in range(int(shared * options.prompt))]

    def prompts(count: int) -> list[list[int]]:
        rest = options.prompt - len(prefix)
        return [[*prefix, *(draw.randrange(2, 1000) for _ in range(rest))] for _ in range(count)]

    pair.flush()
    pair.generate(prompts(options.warm), at_once=1)
    answers = pair.generate(prompts(options.num), at_once=at_once)
    hit_pages = len(prefix) // layout.page_size
    pages = -(-options.prompt // layout.page_size) - hit_pages
    wanted = pages * layout.page_bytes + layout.slot_bytes
    timings = [answer["timing"] for answer in answers]
    times = {
        "tail": [1e3 * t["transfer_tail_s"] for t in timings],
        "handoff": [1e3 * (t["transfer_arrived_at_s"] - t["transfer_last_at_s"]) for t in timings],
    }
    found = {f"{name}_ms_p{q}": _quantile(values, q) for name, values in times.items() for q in (50, 95)}
    return {
        "gpus": options.gpus or "cpu",
        "prompt": options.prompt,
        "shared": shared,
        "at_once": at_once,
        "requests": len(answers),
        "wanted_bytes": wanted,
        "bytes": statistics.median(t["transfer_bytes"] for t in timings),
        "num_wrong": sum(t["transfer_bytes"] != wanted for t in timings),
        "descriptors": statistics.median(t["transfer_descriptors"] for t in timings),
        "gb_s": statistics.median(t["transfer_bytes"] / t["transfer_write_s"] / 1e9 for t in timings),
        **found,
    }


def _quantile(values: list[float], percent: int) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, round(percent / 100 * (len(ordered) - 1)))]


def _write(options: argparse.Namespace, layout: CacheLayout, rows: list[dict[str, Any]]) -> None:
    facts = {"page_bytes": layout.page_bytes, "slot_bytes": layout.slot_bytes, "compute_layers": options.layers}
    (options.out / "transfer.json").write_text(json.dumps({**facts, "rows": rows}, indent=1) + "\n")
    lines = [f"| {' | '.join(COLUMNS)} |", "| --- " * len(COLUMNS) + "|", *map(_line, rows)]
    (options.out / "transfer.md").write_text("\n".join(lines) + "\n")


def _line(row: dict[str, Any]) -> str:
    exact = "all" if not row["num_wrong"] else f"{row['num_wrong']} not ({row['wanted_bytes']:,.0f})"
    cells = [
        row["gpus"], f"{100 * row['shared']:g} %", row["at_once"], row["requests"], f"{row['bytes']:,.0f}", exact,
        f"{row['descriptors']:.0f}", f"{row['gb_s']:.3g}", f"{100 * row['gb_s'] / NVLINK_GB_S:.2g} %",
        f"{row['tail_ms_p50']:.2f}, {row['tail_ms_p95']:.2f}",
        f"{row['handoff_ms_p50']:.2f}, {row['handoff_ms_p95']:.2f}",
    ]  # fmt: skip
    return f"| {' | '.join(map(str, cells))} |"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tools.gpu.transfer", description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--gpus", default="", help="GPU of prefill and of decode: 0,1, or 0,0 for both on one; empty: CPU"
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for the table and the logs")
    parser.add_argument("--model", default="workloads/checkpoints/quarter", help="folder with config.json")
    parser.add_argument("--layers", type=int, default=4, help="layers that compute (default 4)")
    parser.add_argument("--prompt", type=int, default=65536, help="tokens of a prompt")
    parser.add_argument("--chunk", type=int, default=32768, help="tokens of a prefill step")
    parser.add_argument("--page", type=int, default=256, help="tokens of a page")
    parser.add_argument("--kv", default="fp8_e4m3", help="cache.kv_dtype")
    parser.add_argument("--budget-gib", type=int, default=16, help="memory of each instance's pools")
    parser.add_argument("--num", type=int, default=24, help="measured requests of a row")
    parser.add_argument(
        "--warm", type=int, default=2, help="requests before them; they leave the prefix in both caches"
    )
    parser.add_argument("--prefixes", type=_floats, default=PREFIXES, help="shared parts of a prompt")
    parser.add_argument("--at-once", type=_ints, default=(1, 4), help="requests in flight")
    parser.add_argument("--set", action="append", default=[], metavar="PATH=VALUE", help="change one setting of both")
    return parser


def _floats(text: str) -> tuple[float, ...]:
    return tuple(float(part) for part in text.split(","))


def _ints(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


if __name__ == "__main__":
    sys.exit(main())
