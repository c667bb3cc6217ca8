"""What a trained checkpoint is worth, on the real engine on a CPU, in one command.

    python -m workloads.corpus mini-gsm Q.jsonl && python -m workloads.corpus retrieval R.jsonl
    python -m stack.training.assess CHECKPOINT --questions Q.jsonl --retrieval R.jsonl --out report.json

Parts: `accuracy` (held-out stories, five examples shown), `retrieval` (by depth in tokens), `acceptance` (both drafters
on those stories), `fp8` (weights and caches in FP8, states in BF16, paired with BF16), `faults` (planted mistakes, each
paired with the honest engine). A part that the checkpoint cannot show, such as a draft it lacks, is an error.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from stack.core import ConfigError, EngineError
from stack.training.asking import Answer, respondent
from stack.training.comparison import paired_z, sign_test
from stack.training.faults import FAULTS, Fault
from stack.training.fp8_form import write_fp8
from stack.training.questions import Questions, marked_number

PARTS = ("accuracy", "retrieval", "acceptance", "fp8", "faults")
FP8 = {"cache.kv_dtype": "fp8_e4m3", "cache.index_dtype": "fp8_e4m3", "cache.state_dtype": "bfloat16"}
_ANSWER_TOKENS = 160
_SURE = 0.01
_FAR = 3.0


class Assessment:
    """The questions of one checkpoint, and what was measured so far; honest runs are made once."""

    def __init__(
        self, checkpoint: Path, questions: Questions, retrieval: Path | None, planted: Sequence[Fault] = FAULTS
    ) -> None:
        self._checkpoint, self._questions, self._retrieval, self._planted = checkpoint, questions, retrieval, planted
        self._tokenizer = questions.tokenizer
        self._honest: dict[str, list[Answer]] = {}

    def method(self, name: str, checkpoint: Path | None = None) -> dict[str, Any]:
        """Settings of a drafter, or of plain decoding."""
        if name == "accuracy":
            return {}
        if name == "mtp":
            return {"speculation.method": "mtp"}
        return {
            "speculation.method": "dflash2",
            "speculation.draft_path": str((checkpoint or self._checkpoint) / "draft"),
        }

    def ask(self, checkpoint: Path, settings: dict[str, Any]) -> list[Answer]:
        """Greedy answers to all stories."""
        end = self._tokenizer.encode("Question").ids[0]
        with respondent(checkpoint, settings) as one:
            return one.answers(self._questions.prompts, limit=_ANSWER_TOKENS, end=end)

    def honest(self, method: str) -> list[Answer]:
        """The unspoilt engine's answers."""
        if method not in self._honest:
            self._honest[method] = self.ask(self._checkpoint, self.method(method))
        return self._honest[method]

    def right(self, answers: Sequence[Answer]) -> list[bool]:
        """Which answers give the right number."""
        texts = [self._tokenizer.decode(answer.tokens) for answer in answers]
        return [marked_number(text) == gold for text, gold in zip(texts, self._questions.gold, strict=True)]

    def accuracy(self) -> dict[str, Any]:
        """Share of right answers."""
        right = self.right(self.honest("accuracy"))
        return {"items": len(right), "right": sum(right), "accuracy": sum(right) / len(right)}

    def retrieval(self) -> dict[str, Any]:
        """Needles found, by lines behind them and the mean depth in tokens."""
        if self._retrieval is None:
            raise ConfigError("the part retrieval needs --retrieval FILE, from python -m workloads.corpus retrieval")
        with self._retrieval.open() as lines:
            items = [json.loads(line) for line in lines]
        prompts = [self._tokenizer.encode(item["prompt"], add_special_tokens=False).ids for item in items]
        with respondent(self._checkpoint, {}) as one:
            answers = one.answers(prompts, limit=8, end=self._tokenizer.encode("\n").ids[0])
        found: dict[int, list[tuple[bool, int]]] = {}
        for item, answer in zip(items, answers, strict=True):
            is_right = self._tokenizer.decode(answer.tokens).split("\n")[0].strip() == item["answer"].strip()
            found.setdefault(item["lines_behind"], []).append((is_right, self._depth(item)))
        return {
            "budget_tokens": json.loads((self._checkpoint / "config.json").read_text())["text_config"]["index_topk"],
            "depths": [
                {
                    "lines_behind": lines_behind,
                    "tokens_behind": sum(depth for _, depth in rows) / len(rows),
                    "items": len(rows),
                    "found": sum(is_right for is_right, _ in rows) / len(rows),
                }
                for lines_behind, rows in sorted(found.items())
            ],
        }

    def acceptance(self) -> dict[str, Any]:
        """Tokens a verify commits, natural; and whether the text is plain decoding's."""
        plain = self.honest("accuracy")
        return {method: self._acceptance(method, plain) for method in ("mtp", "dflash2")}

    def fp8(self) -> dict[str, Any]:
        """Accuracy lost by FP8 weights and caches with BF16 states."""
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch)
            write_fp8(self._checkpoint, folder)
            before, after = self.right(self.honest("accuracy")), self.right(self.ask(folder, FP8))
        lost = 100 * (sum(before) - sum(after)) / len(before)
        return {"bf16_right": sum(before), "fp8_right": sum(after), "lost_points": lost, "p": sign_test(before, after)}

    def faults(self) -> list[dict[str, Any]]:
        """Each fault's effect."""
        return [self._fault(fault) for fault in self._planted]

    def _fault(self, fault: Fault) -> dict[str, Any]:
        honest = self.honest(fault.shows_in)
        with tempfile.TemporaryDirectory() as scratch, fault.plant(self._checkpoint, Path(scratch)) as checkpoint:
            spoilt = self.ask(checkpoint, self.method(fault.shows_in, checkpoint))
        before, after = self.right(honest), self.right(spoilt)
        p = sign_test(before, after)
        found = {"fault": fault.name, "honest_right": sum(before), "spoilt_right": sum(after), "p": p}
        shows = p < _SURE
        lengths = [(a.accept_length, b.accept_length) for a, b in zip(honest, spoilt, strict=True)]
        pairs = [(a, b) for a, b in lengths if a is not None and b is not None]
        if pairs:
            z = paired_z(*map(list, zip(*pairs, strict=True)))
            found |= {"honest_length": _length(honest), "spoilt_length": _length(spoilt), "z": z}
            shows = shows or abs(z) > _FAR
        return {**found, "shows": shows}

    def _acceptance(self, method: str, plain: Sequence[Answer]) -> dict[str, Any]:
        answers = self.honest(method)
        same = sum(a.tokens == b.tokens for a, b in zip(answers, plain, strict=True))
        return {"accept_length": _length(answers), "verifies": sum(a.num_verify for a in answers), "same_text": same}

    def _depth(self, item: dict[str, Any]) -> int:
        behind = item["prompt"].split("\n")[-1 - item["lines_behind"] :]
        return len(self._tokenizer.encode("\n".join(behind), add_special_tokens=False).ids)


def _length(answers: Sequence[Answer]) -> float | None:
    verifies = sum(answer.num_verify for answer in answers)
    return 1 + sum(answer.num_accepted for answer in answers) / verifies if verifies else None


def main(arguments: list[str] | None = None) -> int:
    """Assess and write the report. Exit codes: 0 done, 2 a mistake of the user."""
    parser = argparse.ArgumentParser(prog="python -m stack.training.assess", description="Assess a checkpoint.")
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--questions", type=Path, required=True, help="JSON lines from workloads.corpus mini-gsm")
    parser.add_argument("--retrieval", type=Path, help="JSON lines from workloads.corpus retrieval")
    parser.add_argument("--out", type=Path, required=True, help="JSON report")
    parser.add_argument("--items", type=int, default=200, help="stories to ask")
    parser.add_argument("--shots", type=int, default=5, help="worked examples before each")
    parser.add_argument("--parts", default=",".join(PARTS), help=f"some of {','.join(PARTS)}")
    names = [fault.name for fault in FAULTS]
    parser.add_argument("--fault", choices=names, action="append", help="plant this one alone; may be repeated")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    try:
        for file in (options.checkpoint / "tokenizer.json", options.questions):
            if not file.is_file():
                raise ConfigError(f"there is no {file}; python -m stack.training.assess --help says what is needed")
        tokenizer = Tokenizer.from_file(str(options.checkpoint / "tokenizer.json"))
        questions = Questions.read(options.questions, tokenizer, shots=options.shots, count=options.items)
        planted = [fault for fault in FAULTS if fault.name in (options.fault or names)]
        assessment = Assessment(options.checkpoint, questions, options.retrieval, planted)
        report: dict[str, Any] = {"shots": options.shots}
        for part in options.parts.split(","):
            if part not in PARTS:
                raise ConfigError(f"there is no part {part!r}; choose from {', '.join(PARTS)}")
            report[part] = getattr(assessment, part)()
            options.out.write_text(json.dumps(report, indent=1) + "\n")
            print(json.dumps({part: report[part]}), flush=True)  # noqa: T201
    except EngineError as error:
        print(error, file=sys.stderr)  # noqa: T201
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
