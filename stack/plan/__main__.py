"""Print the memory plan of a configuration: every term, then pages, slots and the running limit.

Reads the checkpoint's `config.json` and safetensors headers, never weights. Exit codes: 0, or 2 with one sentence on
stderr when the configuration is wrong or cannot fit.
"""

import argparse
import json
import sys
from pathlib import Path

from stack.cache.budget import MemoryPlan, plan_memory
from stack.config import EngineConfig, load, parse_settings
from stack.core.errors import CapacityError, ConfigError


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    options = _parser().parse_args(arguments)
    try:
        config = load(options.config, parse_settings(options.set))
        plan = plan_memory(config, free_bytes=_free_bytes(config, options.free_bytes), weights=options.weights_bytes)
    except (ConfigError, CapacityError) as error:
        print(error, file=sys.stderr)
        return 2
    print(_json(plan) if options.json else plan.table())
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m stack.plan", description=__doc__)
    parser.add_argument("config", type=Path, help="JSON file of one instance's configuration")
    parser.add_argument("--set", action="append", default=[], metavar="PATH=VALUE", help="change one setting")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--weights-bytes", type=int, metavar="N", help="weights' bytes; default: from the checkpoint")
    parser.add_argument("--free-bytes", type=int, metavar="N", help="device memory before weights; default: asked for")
    return parser


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
