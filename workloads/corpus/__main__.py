"""Command line of the corpus.

    python -m workloads.corpus train OUT --documents 100000 [--processes 16] [--seed 0]
    python -m workloads.corpus mini-gsm FILE [--items 1005] [--seed 0]
    python -m workloads.corpus retrieval FILE [--lines 2,10,20,30,40,50,64] [--items 50] [--seed 0]

`train` writes one JSON-lines file a process, each line `{"kind", "text"}`. The others are held-out items.
"""

import argparse
from itertools import islice
from pathlib import Path

from workloads.corpus import retrieval_items, stories
from workloads.corpus.files import write_lines, write_training_text


def main(arguments: list[str] | None = None) -> None:
    """Write what was asked for and say how much it is."""
    options = _parser().parse_args(arguments)
    if options.what == "train":
        count = write_training_text(
            options.out, count=options.documents, processes=options.processes, seed=options.seed
        )
        print(f"wrote {count} documents into {options.out}")
    elif options.what == "mini-gsm":
        told = islice(stories(options.seed, "held_out"), options.items)
        write_lines(options.out, ({"question": s.question, "answer": s.answer, "pattern": s.pattern} for s in told))
    else:
        depths = [int(part) for part in options.lines.split(",")]
        items = (item for depth in depths for item in retrieval_items(options.seed, depth, options.items))
        write_lines(
            options.out, ({"prompt": i.prompt, "answer": i.answer, "lines_behind": i.lines_behind} for i in items)
        )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m workloads.corpus", description="Text of the small checkpoint.")
    kinds = parser.add_subparsers(dest="what", required=True)
    train = kinds.add_parser("train", help="training documents")
    train.add_argument("out", type=Path, help="folder")
    train.add_argument("--documents", type=int, default=100_000)
    train.add_argument("--processes", type=int, default=1)
    gsm = kinds.add_parser("mini-gsm", help="held-out stories in GSM8K's fields")
    gsm.add_argument("out", type=Path, help="file")
    gsm.add_argument("--items", type=int, default=1005)
    retrieval = kinds.add_parser("retrieval", help="held-out retrieval by depth")
    retrieval.add_argument("out", type=Path, help="file")
    retrieval.add_argument("--lines", default="2,10,20,30,40,50,64", help="lines between needle and question")
    retrieval.add_argument("--items", type=int, default=50, help="items of each depth")
    for kind in (train, gsm, retrieval):
        kind.add_argument("--seed", default="0")
    return parser


if __name__ == "__main__":
    main()
