from hypothesis import given
from hypothesis import strategies as st

from stack.models.tiny_tokenizer import build_tokenizer
from stack.server.detokenizer import TextStream
from stack.server.tokenizer import TokenText

TOKENIZER = build_tokenizer()
TEXT = TokenText(TOKENIZER)
IDS = st.lists(st.integers(0, 1023), max_size=60)


def stream_of(text, **options):
    stream = TextStream(TEXT, **options)
    return stream, TEXT.encode(text)


@given(IDS, st.booleans())
def test_the_text_equals_decoding_all_tokens_at_once(ids, skip):
    stream = TextStream(TEXT, skip_special_tokens=skip)
    for token_id in ids:
        stream.push(token_id)
    stream.close()
    assert stream.text == TOKENIZER.decode(ids, skip_special_tokens=skip)


@given(IDS, st.lists(st.text(min_size=1, max_size=4), max_size=3), st.integers(0, 10))
def test_what_was_stable_is_never_taken_back(ids, stops, min_tokens):
    stream = TextStream(TEXT, stop=stops, min_tokens=min_tokens)
    sent = ""
    for token_id in ids:
        is_cut = stream.push(token_id)
        stable = stream.text[: stream.stable_length]
        assert stable.startswith(sent)
        sent = stable
        if is_cut:
            break
    stream.close()
    assert stream.text.startswith(sent)
    assert stream.stable_length == len(stream.text)


@given(st.text(alphabet="abQuestion é", max_size=60), st.sampled_from(["Question", "ab", "é", "aab", "n a"]))
def test_a_stop_string_cuts_at_its_first_place(text, stop):
    stream, ids = stream_of(text, stop=[stop])
    pushed = 0
    for token_id in ids:
        pushed += 1
        if stream.push(token_id):
            break
    stream.close()
    assert stream.text == text.partition(stop)[0]
    assert (stream.matched == stop) == (stop in text)
    if stop in text:
        assert stop in TOKENIZER.decode(ids[:pushed]), "it was cut before it was there"
        assert stop not in TOKENIZER.decode(ids[: pushed - 1]), "it was cut later than it was there"


def test_a_stop_string_across_tokens_is_held_back_until_it_is_decided():
    stream, ids = stream_of("apples Qu", stop=["Question"])
    for token_id in ids:
        stream.push(token_id)
    assert stream.text[: stream.stable_length] == "apples "
    for token_id in TEXT.encode("ick"):
        stream.push(token_id)
    assert stream.text[: stream.stable_length] == "apples Quick"


def test_the_earliest_of_two_stop_strings_wins():
    stream, ids = stream_of("xx<|pad|>", stop=["b c", "a b"], skip_special_tokens=False)
    for token_id in ids:
        assert not stream.push(token_id)
    stream = TextStream(TEXT, stop=["b", "a b"])
    assert [stream.push(i) for i in TEXT.encode("a b")][-1]
    assert (stream.text, stream.matched) == ("", "a b")


def test_stop_strings_wait_for_the_minimum():
    ids = TEXT.encode("ababab")
    assert len(ids) == 6
    for min_tokens, want in ((0, "a"), (2, "a"), (3, "aba"), (5, "ababa"), (7, "ababab")):
        stream = TextStream(TEXT, stop=["b"], min_tokens=min_tokens)
        for token_id in ids:
            if stream.push(token_id):
                break
        stream.close()
        assert stream.text == want, min_tokens


def test_an_unfinished_character_is_held_back_and_replaced_at_the_end():
    first = TEXT.encode("é")[:1]
    stream = TextStream(TEXT)
    stream.push(first[0])
    assert stream.text == ""
    stream.close()
    assert stream.text == "�"


def test_wrong_bytes_do_not_hold_the_text_back():
    continuation = next(i for i in range(1024) if TEXT.bytes_of(i) == b"\x80")
    stream = TextStream(TEXT)
    for _ in range(5):
        stream.push(continuation)
    assert stream.text == "�" * 5


def test_without_a_tokenizer_the_text_is_empty():
    stream = TextStream(None)
    assert not stream.push(5)
    stream.close()
    assert stream.text == ""
