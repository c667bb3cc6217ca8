"""Print the memory plan of a configuration: every term, then pages, slots and the running limit.

Reads the checkpoint's `config.json` and safetensors headers, never weights. Exit codes: 0, or 2 with one sentence on
stderr when the configuration is wrong or cannot fit. A reader that goes away, such as `head`, ends it quietly.
"""

import argparse
import json
import os
import sys
from pathlib import Path

from stack.cache.budget import MemoryPlan, plan_memory
from stack.config import EngineConfig, load, parse_settings
from stack.core.errors import CapacityError, ConfigError


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    options = _parser().parse_args(arguments)
    try:
        _check(options)
        config = load(options.config, parse_settings(options.set))
        plan = plan_memory(config, free_bytes=_free_bytes(config, options.free_bytes), weights=options.weights_bytes)
    except (ConfigError, CapacityError) as error:
        print(error, file=sys.stderr)
        return 2
    return _shown(_json(plan) if options.json else plan.table())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m stack.plan", description=__doc__)
    parser.add_argument("config", type=Path, help="JSON file of one instance's configuration")
    parser.add_argument("--set", action="append", default=[], metavar="PATH=VALUE", help="change one setting")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--weights-bytes", type=int, metavar="N", help="weights' bytes; default: from the checkpoint")
    parser.add_argument(
        "--free-bytes",
        type=int,
        metavar="N",
        help="free device memory before weights, which the budget is held against; default: asked of the device",
    )
    return parser


def _check(options: argparse.Namespace) -> None:
    """Numbers that no device can have are typing mistakes."""
    if options.free_bytes is not None and options.free_bytes < 1:
        raise ConfigError(f"--free-bytes must be more than 0, not {options.free_bytes}: the device's free bytes")
    if options.weights_bytes is not None and options.weights_bytes < 0:
        raise ConfigError(f"--weights-bytes must not be negative, as {options.weights_bytes} is")


def _shown(text: str) -> int:
    try:
        print(text, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the interpreter fails again as it ends
    return 0


def _free_bytes(config: EngineConfig, given: int | None) -> int:
    if given is not None:
        return given
    if config.cache.budget_bytes is not None or config.model.device == "cpu":
        return 0
    import torch  # only a question to a device needs it

    if not torch.cuda.is_available():
        raise ConfigError("no GPU to ask for its free memory: pass --free-bytes, or set cache.budget_bytes")
    return int(torch.cuda.mem_get_info(config.model.device)[0])


def _json(plan: MemoryPlan) -> str:
    return json.dumps(plan.as_dict(), indent=1)


if __name__ == "__main__":
    sys.exit(main())
