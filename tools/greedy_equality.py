"""Are the engine's greedy texts those of transformers' `glm5_next`? Held-out questions, one at a time in the judge.

    python -m workloads.corpus mini-gsm build/q.jsonl
    python -m tools.greedy_equality CHECKPOINT --questions build/q.jsonl [--count 100] [--tokens 130]

Weights, states and arithmetic are FP32 on both sides (needs the test extra). The engine writes its answers in batches
of 16 through its caches; the judge reads each prompt with its answer at once and says what it would have written at
every place. Another token is allowed only where the judge's two logits are within `GAP`; every such place is listed.
Exit code 1: a text is not the judge's.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor

from stack.training.asking import respondent
from stack.training.questions import Questions
from tests.support.glm_reference import GlmReference

EXACT = {
    "model.compute_dtype": "float32",
    "cache.kv_dtype": "float32",
    "cache.index_dtype": "float32",
    "cache.state_dtype": "float32",
    "cache.conv_dtype": "float32",
}
GAP = 1e-3
"""Largest gap of two logits that sums in another order may turn; FP32 logits agree within 1e-4 of their RMS."""
SHOTS = 5


@dataclass(frozen=True, slots=True)
class Difference:
    """The first place of an answer where the judge would have written another token."""

    prompt: int
    place: int
    ours: int
    judge: int
    gap: float


def first_difference(prompt: int, logits_TV: Tensor, tokens: Sequence[int], answer_len: int) -> Difference | None:
    """Holds the last `answer_len` of T `tokens` against the FP32 logits [T, V] of all of them."""
    start = len(tokens) - answer_len
    for place in range(answer_len):
        row_V = logits_TV[start + place - 1]
        ours, judge = tokens[start + place], int(row_V.argmax())
        if ours != judge:
            return Difference(prompt, place, ours, judge, float(row_V[judge] - row_V[ours]))
    return None


def compare(checkpoint: Path, prompts: Sequence[list[int]], tokens: int, end: int) -> tuple[int, list[Difference]]:
    """Answer all prompts, judge them; returns the number of answered tokens and the first difference of each text."""
    with respondent(checkpoint, EXACT) as engine:
        answers = [answer.tokens for answer in engine.answers(prompts, limit=tokens, end=end)]
    judge, found = GlmReference(checkpoint), []
    for number, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        whole = [*prompt, *answer]
        found.append(first_difference(number, judge.logits(whole), whole, len(answer)))
        print(f"\r{number + 1} of {len(prompts)} answers judged", end="", flush=True)
    print()
    return sum(map(len, answers)), [difference for difference in found if difference]


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--questions", type=Path, required=True)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--tokens", type=int, default=130, help="most tokens of an answer")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    tokenizer = Tokenizer.from_file(str(options.checkpoint / "tokenizer.json"))
    asked = Questions.read(options.questions, tokenizer, shots=SHOTS, count=options.count)
    end = tokenizer.encode("Question", add_special_tokens=False).ids[0]
    num_tokens, differences = compare(options.checkpoint, asked.prompts, options.tokens, end)
    far = [difference for difference in differences if difference.gap > GAP]
    print(f"{len(asked.prompts)} answers, {num_tokens} tokens: {len(asked.prompts) - len(differences)} equal")
    for one in differences:
        kind = "within the bound" if one.gap <= GAP else "NOT EQUAL"
        print(f"answer {one.prompt}, token {one.place}: {one.ours}, judge {one.judge}, gap {one.gap:.2e}: {kind}")
    return 1 if far else 0


if __name__ == "__main__":
    raise SystemExit(main())
