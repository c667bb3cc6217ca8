"""The small checkpoint's tokenizer: a byte-level BPE of 512 entries in which every digit is a token of its own.

    python -m stack.training.tokenizer CORPUS FOLDER

Ids: 0 pad, 1 end, 2 and 3 the two chat turns, 511 the drafter's mask; all others are bytes and merges. CORPUS holds
JSON-lines files with a `text` in each line; the same text gives the same merges.
"""

import argparse
import json
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

VOCAB_SIZE = 512
PAD_ID, END_ID, MASK_ID = 0, 1, VOCAB_SIZE - 1
SPECIAL = ("<|pad|>", "<|end|>", "<|user|>", "<|assistant|>")
_CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] if message['role'] == 'assistant' else 'user' }}|>"
    "{{ message['content'] }}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def corpus_texts(folder: Path) -> Iterator[str]:
    """Every document's text, file after file."""
    for file in sorted(folder.glob("*.jsonl")):
        with file.open() as lines:
            yield from (json.loads(line)["text"] for line in lines)


def trained_tokenizer(texts: Iterable[str]) -> Tokenizer:
    """Merges learned from `texts`; numbers never merge."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - 1,
        special_tokens=list(SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens(["<|mask|>"])
    if tokenizer.get_vocab_size() != VOCAB_SIZE or tokenizer.token_to_id("<|mask|>") != MASK_ID:
        raise ValueError(f"the text gave {tokenizer.get_vocab_size()} entries, not {VOCAB_SIZE}: it needs to be longer")
    return tokenizer


def write_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Write tokenizer.json and tokenizer_config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": 4096,
        "pad_token": SPECIAL[PAD_ID],
        "eos_token": SPECIAL[END_ID],
        "chat_template": _CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n")


def main(arguments: list[str] | None = None) -> None:
    """Train on the first documents of a corpus."""
    parser = argparse.ArgumentParser(prog="python -m stack.training.tokenizer", description="Train the tokenizer.")
    parser.add_argument("corpus", type=Path, help="folder of JSON-lines files")
    parser.add_argument("folder", type=Path, help="where tokenizer.json goes")
    parser.add_argument("--documents", type=int, default=6000)
    options = parser.parse_args(arguments)
    write_tokenizer(trained_tokenizer(islice(corpus_texts(options.corpus), options.documents)), options.folder)
    print(f"wrote {options.folder / 'tokenizer.json'}")  # noqa: T201


if __name__ == "__main__":
    main()
