"""`python -m tools.gpu.null.start CONFIG.json [--set PATH=VALUE ...]`: start an instance as far as ready."""

import argparse
import logging
import sys
from pathlib import Path

from stack.config import load, parse_settings
from stack.core.clock import MonotonicClock
from stack.engine.build import build_instance


def main() -> None:
    """The command line; other words of a benchmark's are not looked at."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config", type=Path)
    parser.add_argument("--set", action="append", default=[], metavar="PATH=VALUE")
    options, _ = parser.parse_known_args()
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(name)s: %(message)s")
    build_instance(load(options.config, parse_settings(options.set)), MonotonicClock()).close()


if __name__ == "__main__":
    main()
