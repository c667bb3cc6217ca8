"""GSM8K questions as traffic: worked examples first, then one question; lengths are natural.

The prompt's form is the published one: each example is "Question: ...", "Answer: ..." with its full answer and an empty
line; the question ends with "Answer:" and nothing after the colon. The examples are the first lines of the same file.
"""

from pydantic import BaseModel

from workloads.sources.datafile import json_lines
from workloads.spec import Gsm8kSource, SpecError
from workloads.traffic import Conversation, Item, Prompt


class _Line(BaseModel):
    """One line of the file, as far as it is used."""

    question: str
    answer: str


class Gsm8kTraffic:
    """Conversation i is question i after the examples, again from the start when they run out."""

    def __init__(self, source: Gsm8kSource) -> None:
        self._source = source
        questions = load_questions(source.path, source.sha256)
        self._shots = few_shot_prefix(questions, source.shots)
        self.items = asked_questions(questions, source.shots, skip_shots=source.skip_shots)

    def conversations(self, seed: int, count: int, *, first: int = 0) -> list[Conversation]:
        """Prompts as text; `seed` changes nothing, the questions are what they are."""
        asked = self.items
        prompts = [self._shots + question_prompt(asked[i % len(asked)]) for i in range(first, first + count)]
        return [Conversation(turns=[Prompt(text=p, output_tokens=self._source.output_len, group=0)]) for p in prompts]

    def prefixes(self, seed: int) -> list[Prompt]:
        """The examples, which all prompts share; their length in tokens is the server's to say."""
        return []


def load_questions(path: str, sha256: str | None = None) -> list[Item]:
    """All questions of a file. Raises SpecError."""
    lines = json_lines(path, sha256, _Line)
    found = [Item(i, line.question, line.answer) for i, (_, line) in enumerate(lines)]
    if not found:
        raise SpecError(f"{path} holds no question")
    return found


def asked_questions(questions: list[Item], shots: int, *, skip_shots: bool) -> list[Item]:
    """The questions that are asked, in order."""
    return questions[shots:] if skip_shots else questions


def few_shot_prefix(questions: list[Item], shots: int) -> str:
    """The first `shots` questions with their answers. Raises SpecError when no question would be left."""
    if shots >= len(questions):
        raise SpecError(f"{len(questions)} questions leave none after {shots} examples")
    return "".join(f"{question_prompt(q)} {q.answer}\n\n" for q in questions[:shots])


def question_prompt(question: Item) -> str:
    """The question, up to where the answer begins."""
    return f"Question: {question.question}\nAnswer:"
