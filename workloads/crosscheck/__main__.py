"""Command line: `python -m workloads.crosscheck WORKLOAD.json --url URL --peer sglang --tokenizer DIR --out FOLDER`."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from workloads.client import Target, content
from workloads.crosscheck.compare import crosscheck
from workloads.crosscheck.peers import PEERS, NotInstalledError
from workloads.files import write_json
from workloads.preparation import NotReadyError
from workloads.spec import SpecError, parse


def _order(text: str) -> str:
    if not text or set(text) - {"a", "b"}:
        raise argparse.ArgumentTypeError(f"{text!r} is no order of runs; write a and b, such as abba")
    return text


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit codes: 0 done, 2 a mistake or a failed run, 4 the peer is not installed."""
    parser = argparse.ArgumentParser(
        prog="python -m workloads.crosscheck", description="Measure a cell with two tools."
    )
    parser.add_argument("workload", type=Path, help="resolved workload (JSON)")
    parser.add_argument("--url", required=True, help="server or router")
    parser.add_argument("--peer", choices=sorted(PEERS), required=True, help="the other tool")
    parser.add_argument("--tokenizer", required=True, help="folder with the model's tokenizer")
    parser.add_argument("--out", type=Path, required=True, help="folder for both tools' files")
    parser.add_argument("--launcher", type=Path, help="script to run instead of the tool's own entry")
    parser.add_argument("--order", type=_order, default="abba", help="a is ours, b is theirs (default: abba)")
    options = parser.parse_args(arguments)
    try:
        result = crosscheck(
            parse(content(options.workload)),
            peer=options.peer,
            target=Target(url=options.url),
            tokenizer=options.tokenizer,
            out=options.out,
            launcher=options.launcher,
            order=options.order,
        )
    except (SpecError, NotReadyError, FileNotFoundError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    except NotInstalledError as error:
        sys.stderr.write(f"not installed: {error}\n")
        return 4
    write_json(options.out / "crosscheck.json", result)
    for key, value in result["values"].items():
        print(f"{key}: ours {value['ours']}, {options.peer} {value['theirs']}, {value['ours_over_theirs_minus_1']}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
