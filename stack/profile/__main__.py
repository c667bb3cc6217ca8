"""Where the time of a prefill chunk and of a decode step goes: `python -m stack.profile CONFIG.json [--out FILE]`.

One worker's loop without HTTP serves made-up prompts twice: a warm-up, then the window that is shown. Steps run one
after the other and without captured graphs, so that every op has its time; before each one a GPU spins while the host
enqueues it, so that no op's time holds the host's. A served step overlaps with the host's work and is shorter. Exit
codes: 0, or 2 with one sentence for a mistake of the user.
"""

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

import torch

from stack.config import EngineConfig, load, parse_settings
from stack.core import EngineError
from stack.engine.bench import Bench, Load, add_load_arguments, load_of
from stack.engine.kernel_trace import give_head_start
from stack.profile.regions import OTHER, Region, Regions

FORCED = {"scheduler.overlap": False, "graphs.decode": False}


def main(arguments: list[str] | None = None) -> int:
    """The command line."""
    options = _parser().parse_args(arguments)
    try:
        report = profile(load(options.config, parse_settings(options.set) | FORCED), load_of(options, seed=2))
    except EngineError as error:
        print(error, file=sys.stderr)
        return 2
    if options.out:
        options.out.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report) if options.json else table(report))
    return 0


def profile(config: EngineConfig, window: Load) -> dict[str, Any]:
    """The report: for each kind of step its time, its ops, and what lies between them."""
    regions = Regions(torch.device(config.model.device))
    with regions.recording():
        bench = Bench(config)
        _name_steps(bench, regions)
        bench.run(
            Load(count=1, input_len=window.input_len, output_len=window.output_len, shared_len=0, concurrency=1, seed=1)
        )
        regions.forget()
        steps: dict[str, list[float]] = {}
        bench.run(window, on_turn=lambda seen: _note(seen.steps, steps))
        found = regions.regions()
    impls, max_running = bench.instance.impls, bench.instance.plan.max_running
    bench.close()
    return {
        "schema": "profile/1",
        "device": config.model.device,
        "load": {
            name: getattr(window, name) for name in ("count", "input_len", "output_len", "shared_len", "concurrency")
        },
        "max_running": max_running,
        "impls": impls,
        "kinds": {kind: _kind(times_s, [r for r in found if r.kind == kind]) for kind, times_s in steps.items()},
    }


def table(report: dict[str, Any]) -> str:
    """The report for a person."""
    lines = []
    for kind, body in report["kinds"].items():
        lines.append(f"{kind}: {body['steps']} steps, {body['step_ms']:.2f} ms each (median {body['step_ms_p50']:.2f})")
        lines += [
            f"  {row['ms_per_step']:10.3f} ms {row['share']:6.1%}  {row['calls_per_step']:7.1f} calls  "
            f"{row['op']:16} {row['impl']}".rstrip()
            for row in body["ops"]
        ]
    return "\n".join(lines)


def _kind(times_s: list[float], regions: list[Region]) -> dict[str, Any]:
    count, total_s = len(times_s), sum(times_s)
    rest = total_s - sum(region.seconds for region in regions)
    rows = [(r.op, r.impl, r.calls, r.seconds) for r in regions] + [(OTHER, "", 0, rest)]
    return {
        "steps": count,
        "step_ms": 1e3 * total_s / count,
        "step_ms_p50": 1e3 * statistics.median(times_s),
        "ops": [
            {
                "op": op,
                "impl": impl,
                "calls_per_step": calls / count,
                "ms_per_step": 1e3 * seconds / count,
                "share": seconds / total_s,
            }
            for op, impl, calls, seconds in rows
        ],
    }


def _name_steps(bench: Bench, regions: Regions) -> None:
    """Have each step named before it runs. Steps do not overlap here, so the name holds until it is done."""
    runner = bench.instance.runner
    launch = runner.launch

    def named(plan: Any) -> Any:
        regions.kind = plan.kind
        give_head_start(runner, bench.device)
        return launch(plan)

    runner.launch = named  # type: ignore[method-assign]


def _note(seen: list[Any], steps: dict[str, list[float]]) -> bool:
    done = sum(map(len, steps.values()))
    for plan, result in seen[done:]:
        steps.setdefault(plan.kind, []).append(result.device_s)
    return True


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m stack.profile", description=(__doc__ or "").splitlines()[0])
    add_load_arguments(
        parser, config="engine configuration, JSON; role single", num="requests of the window", output_len=64
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--out", type=Path, help="also write the JSON here")
    return parser


if __name__ == "__main__":
    sys.exit(main())
