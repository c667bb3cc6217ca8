"""Run one instance of the engine: `python -m stack.server CONFIG.json [--set path=value ...]`."""

import argparse
import asyncio
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

import uvloop

from stack.config import load, parse_settings
from stack.core.errors import CapacityError, ConfigError
from stack.server.listener import allow_many_connections, claim_port
from stack.server.supervisor import say, supervise


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until drained. Returns the exit code: 0 drained, 2 for a mistake of the user, 1 otherwise."""
    options = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s")
    try:
        config = load(options.config, parse_settings(options.set))
        listener = claim_port(config.server.host, config.server.port)
        allow_many_connections()
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(supervise(config, listener, options.worker_module))
    except (ConfigError, CapacityError) as error:
        say(f"error: {error}")
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m stack.server", description=__doc__)
    parser.add_argument("config", type=Path, metavar="CONFIG.json", help="configuration tree of stack/config.py")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="PATH=VALUE",
        help="change one setting by its dotted path; the value is JSON, or text when it is not (repeat)",
    )
    parser.add_argument(
        "--worker-module",
        default="stack.engine",
        metavar="MODULE",
        help="module that runs as the worker process and speaks stack.core.messages",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
