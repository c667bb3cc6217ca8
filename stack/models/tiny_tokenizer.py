"""The `tiny` checkpoint's tokenizer: a real byte-level BPE of exactly 1,024 entries, trained on template English.

Ids: 0 pad, 1 end, 2 and 3 the two chat turns, 1023 the drafter's mask; every other id is a byte or a merge, so whatever
a random model says decodes. Training is deterministic: the same text gives the same merges.
"""

import json
import random
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

VOCAB_SIZE = 1024
PAD_TOKEN, END_TOKEN, USER_TOKEN, ASSISTANT_TOKEN, MASK_TOKEN = (
    "<|pad|>",
    "<|end|>",
    "<|user|>",
    "<|assistant|>",
    "<|mask|>",
)

_NAMES = (
    "Ada Boris Chen Dalia Emeka Freya Goro Hana Ivan Jomo Kira Leila Marta Nils Omar Priya Rosa Sven Tariq Uma".split()
)
_THINGS = (
    "apples books candles drums eggs flowers glasses hats inks jars kites lamps maps notes oranges pencils".split()
)
_PLACES = "market library harbour station garden school bakery museum workshop river village bridge".split()
_VERBS = "bought sold carried counted found gave kept packed sent stored borrowed returned".split()
_WHEN = "in the morning|after lunch|before the rain|on Monday|last week|every evening|at noon|later".split("|")

_CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] if message['role'] == 'assistant' else 'user' }}|>"
    "{{ message['content'] }}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def write_tokenizer(folder: Path) -> None:
    """Write tokenizer.json and tokenizer_config.json into `folder`."""
    build_tokenizer().save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": 4096,
        "pad_token": PAD_TOKEN,
        "eos_token": END_TOKEN,
        "chat_template": _CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n")


def build_tokenizer() -> Tokenizer:
    """Train the tokenizer; always the same one."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - 1,
        special_tokens=[PAD_TOKEN, END_TOKEN, USER_TOKEN, ASSISTANT_TOKEN],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(training_sentences(), trainer)
    tokenizer.add_special_tokens([MASK_TOKEN])
    if tokenizer.get_vocab_size() != VOCAB_SIZE:
        raise AssertionError(f"the tokenizer has {tokenizer.get_vocab_size()} entries, not {VOCAB_SIZE}")
    return tokenizer


def training_sentences(count: int = 4000) -> list[str]:
    """`count` sentences of template English, always the same."""
    draw = random.Random(20261129)
    return [_sentence(draw) for _ in range(count)]


def _sentence(draw: random.Random) -> str:
    who, other = draw.sample(_NAMES, 2)
    number, price = draw.randint(2, 999), draw.randint(2, 99)
    thing, place = draw.choice(_THINGS), draw.choice(_PLACES)
    return draw.choice(
        (
            f"{who} {draw.choice(_VERBS)} {number} {thing} at the {place} {draw.choice(_WHEN)}.",
            f"How many {thing} does {who} have if {other} {draw.choice(_VERBS)} {price} of them?",
            f"Each of the {thing} costs ${price}, so {who} pays {number} * {price} = ${number * price}.",
            f"{who} and {other} walked from the {place} to the {draw.choice(_PLACES)} {draw.choice(_WHEN)}.",
            f"There were {number} {thing} in the {place}, and {other} counted {price} more {draw.choice(_WHEN)}.",
        )
    )
