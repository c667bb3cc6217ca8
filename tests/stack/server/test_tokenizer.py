import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from stack.core.errors import ConfigError, RequestError
from stack.models.tiny_tokenizer import build_tokenizer
from stack.server.tokenizer import TokenText

TOKENIZER = build_tokenizer()
TEXT = TokenText(TOKENIZER)


@given(st.lists(st.integers(0, 1023)))
def test_bytes_of_tokens_join_to_what_the_tokenizer_decodes(ids):
    joined = b"".join(TEXT.bytes_of(token_id) for token_id in ids)
    assert joined.decode(errors="replace") == TOKENIZER.decode(ids, skip_special_tokens=False)


@given(st.text())
def test_encoding_matches_the_library_and_survives_the_way_back(text):
    ids = TEXT.encode(text)
    assert ids == TOKENIZER.encode(text).ids
    assert b"".join(TEXT.bytes_of(token_id) for token_id in ids) == text.encode()


def test_an_unknown_id_has_no_bytes():
    assert TEXT.bytes_of(10_000) == b""


def test_a_lone_surrogate_is_refused():
    with pytest.raises(RequestError, match="surrogate"):
        TEXT.encode("a\ud800b")


def test_special_tokens_in_a_prompt_are_encoded_as_such():
    assert TEXT.encode("a<|end|>b")[1] == 1


def test_a_folder_without_tokenizer_has_none(tmp_path):
    assert TokenText.from_folder(tmp_path) is None


def test_a_broken_tokenizer_file_is_named(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ConfigError, match=r"tokenizer\.json"):
        TokenText.from_folder(tmp_path)


def test_a_tokenizer_of_another_kind_is_refused(tmp_path):
    other = Tokenizer(models.BPE())
    other.decoder = decoders.Metaspace()
    other.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ConfigError, match="byte-level"):
        TokenText.from_folder(tmp_path)


def test_a_byte_level_decoder_in_a_sequence_is_served(tmp_path):
    TOKENIZER.save(str(tmp_path / "tokenizer.json"))
    file = tmp_path / "tokenizer.json"
    tree = json.loads(file.read_text())
    tree["decoder"] = {"type": "Sequence", "decoders": [tree["decoder"]]}
    file.write_text(json.dumps(tree))
    assert TokenText.from_folder(tmp_path) is not None
