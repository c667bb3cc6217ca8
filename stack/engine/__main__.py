"""`python -m stack.engine CONFIG.json --address ADDRESS`: the worker process that the HTTP process starts."""

import argparse
import logging
import sys
from pathlib import Path

from stack.config import load
from stack.core.errors import CapacityError, ConfigError, MissingImplementationError
from stack.engine.worker import Worker


def main() -> int:
    """Serve until drained. Exit codes: 0 drained, 2 for a mistake of the user (one sentence on stderr), 1 otherwise."""
    parser = argparse.ArgumentParser(prog="python -m stack.engine", description="The worker process of an instance.")
    parser.add_argument("config", type=Path, help="engine configuration, JSON")
    parser.add_argument("--address", required=True, help="ZeroMQ address that the HTTP process listens on")
    options = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(asctime)s %(name)s: %(message)s")
    logging.getLogger("stack").setLevel(logging.INFO)
    try:
        worker = Worker(load(options.config), options.address)
    except (ConfigError, CapacityError, MissingImplementationError) as error:
        print(error, file=sys.stderr)
        return 2
    return worker.run()


if __name__ == "__main__":
    sys.exit(main())
