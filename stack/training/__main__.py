"""Trains the small checkpoint from a corpus to files that the engine and transformers load.

    python -m workloads.corpus train CORPUS --documents 450000 --processes 16
    python -m workloads.corpus mini-gsm QUESTIONS && python -m workloads.corpus retrieval NEEDLES
    python -m stack.training WORK --corpus CORPUS --questions QUESTIONS [--needles NEEDLES] --out OUT [--recipe h200]

Stages: the target, its told text, both drafts, the export. `--seconds` ends this run early (exit code 3); the same
command goes on from WORK. OUT gets the checkpoint, `draft/` and `log.jsonl`.
"""

import argparse
import dataclasses
import shutil
import sys
import time
from pathlib import Path

import torch
from tokenizers import Tokenizer

from stack.training.blocks import compile_mapping
from stack.training.drafts_stage import PREFIX, train_drafts
from stack.training.export import write_draft, write_target
from stack.training.journal import Journal
from stack.training.needles import Needles
from stack.training.parameters import Tensors
from stack.training.questions import Questions
from stack.training.recipe import RECIPES, Recipe
from stack.training.sizes import DRAFT_CONFIG, TEXT_CONFIG
from stack.training.target_stage import finished_target, train_target
from stack.training.text import Corpus, encode_corpus
from stack.training.told import TOLD_FILE, tell

UNFINISHED = 3
_TELLING_S = 50.0
"""Telling cannot be interrupted: it begins only with this much time left."""


def main(arguments: list[str] | None = None) -> int:
    """Run what is left of the training. Exit codes: 0 exported, 3 unfinished (the same command goes on)."""
    began_s = time.monotonic()
    options = _parser().parse_args(arguments)
    torch.set_num_threads(options.threads)
    recipe = _recipe(options)
    device = torch.device("cuda" if options.recipe == "h200" else "cpu")
    options.work.mkdir(parents=True, exist_ok=True)
    journal = Journal(options.work / "log.jsonl")
    if device.type == "cuda":
        journal.write(compiled=compile_mapping(device, TEXT_CONFIG), device=torch.cuda.get_device_name())
    journal.write(recipe=dataclasses.asdict(recipe), seed=options.seed, torch=torch.__version__)
    trained = _train(options, recipe, journal, device, began_s + options.seconds)
    if trained is None:
        journal.write(unfinished=True)
        return UNFINISHED
    _export(options, *trained)
    journal.write(exported=True)
    shutil.copyfile(options.work / "log.jsonl", options.out / "log.jsonl")
    return 0


def _train(
    options: argparse.Namespace, recipe: Recipe, journal: Journal, device: torch.device, deadline_s: float
) -> tuple[Tensors, Tensors] | None:
    tokenizer = Tokenizer.from_file(str(options.tokenizer))
    until = {"seed": options.seed, "deadline_s": deadline_s}
    target = finished_target(options.work / "target", recipe, options.target_steps, device)
    if target is None:
        encode_corpus(options.corpus, options.tokenizer, options.processes)
        corpus = Corpus(options.corpus, device)
        journal.write(corpus_tokens=corpus.num_tokens)
        questions = Questions.read(options.questions, tokenizer, shots=recipe.eval_shots, count=recipe.eval_items)
        needles = options.needles and Needles.read(
            options.needles, tokenizer, count=recipe.eval_items, length=recipe.long_tokens
        )
        target = train_target(
            options.work / "target", corpus, questions, needles, TEXT_CONFIG, recipe, journal,
            device=device, steps=options.target_steps, **until,
        )  # fmt: skip
    has_told = (options.work / TOLD_FILE).is_file()
    if target is None or not (has_told or deadline_s - time.monotonic() > _TELLING_S):
        return None
    if options.until == "target":
        return target, {}
    told = tell(options.work, options.corpus, tokenizer, target, TEXT_CONFIG, recipe, journal, seed=options.seed)
    drafts = train_drafts(
        options.work / "drafts", told, target, TEXT_CONFIG, DRAFT_CONFIG, recipe, journal,
        steps=options.draft_steps, **until,
    )  # fmt: skip
    return None if drafts is None else (target, drafts)


def _export(options: argparse.Namespace, target: Tensors, drafts: Tensors) -> None:
    mtp = {name: tensor for name, tensor in drafts.items() if not name.startswith(PREFIX)}
    text_config = TEXT_CONFIG if mtp else {**TEXT_CONFIG, "num_nextn_predict_layers": 0}
    write_target(options.out, target | mtp, text_config)
    if mtp:
        draft = {name.removeprefix(PREFIX): tensor for name, tensor in drafts.items() if name.startswith(PREFIX)}
        write_draft(options.out / "draft", draft, DRAFT_CONFIG)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        if options.tokenizer.parent.resolve() != options.out.resolve():
            shutil.copyfile(options.tokenizer.parent / name, options.out / name)


def _recipe(options: argparse.Namespace) -> Recipe:
    recipe = RECIPES[options.recipe]
    if options.target_minutes is not None:
        recipe = dataclasses.replace(recipe, target_minutes=options.target_minutes)
    if options.drafts_minutes is not None:
        recipe = dataclasses.replace(recipe, drafts_minutes=options.drafts_minutes)
    return recipe


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m stack.training", description="Train the small checkpoint.")
    parser.add_argument("work", type=Path, help="folder for states to go on from")
    parser.add_argument("--corpus", type=Path, required=True, help="folder of JSON-lines files")
    parser.add_argument("--questions", type=Path, required=True, help="held-out questions in GSM8K's fields")
    parser.add_argument(
        "--needles", type=Path, help="held-out items of workloads.corpus retrieval, found or not for the log"
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for the checkpoint and the log")
    checkpoint = Path("workloads/checkpoints/tiny_trained")
    parser.add_argument("--tokenizer", type=Path, default=checkpoint / "tokenizer.json")
    parser.add_argument("--recipe", choices=sorted(RECIPES), default="h200")
    parser.add_argument("--until", choices=("target", "drafts"), default="drafts", help="last stage to train")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=1e9, help="end this run after so long")
    parser.add_argument("--target-minutes", type=float, help="instead of the recipe's")
    parser.add_argument("--drafts-minutes", type=float, help="instead of the recipe's")
    parser.add_argument("--target-steps", type=int, help="train the target for so many steps instead")
    parser.add_argument("--draft-steps", type=int, help="train the drafts for so many steps instead")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of PyTorch")
    parser.add_argument("--processes", type=int, default=1, help="processes that encode text")
    return parser


if __name__ == "__main__":
    sys.exit(main())
