"""Page keys: equal exactly for equal prefixes, hashed once, cheap for long prompts."""

import time

from hypothesis import given
from hypothesis import strategies as st

from stack.cache import PageKeys
from stack.core.tokens import pack_tokens, unpack_tokens

tokens = st.lists(st.integers(0, 2**31 - 1), max_size=40)


@given(tokens, tokens, st.integers(1, 9), st.integers(0, 1))
def test_growing_equals_hashing_at_once(first, second, page_size, lookahead):
    grown = PageKeys(page_size, first, lookahead=lookahead)
    grown.extend(second)
    whole = PageKeys(page_size, first + second, lookahead=lookahead)
    assert grown.keys == whole.keys
    assert grown.num_tokens == len(first + second)
    assert len(whole.keys) == max(len(first + second) - lookahead, 0) // page_size


@given(st.lists(st.integers(0, 3), min_size=12, max_size=12), st.integers(0, 11))
def test_a_changed_token_changes_every_key_from_its_page_on(prompt, at):
    other = [*prompt[:at], prompt[at] + 1, *prompt[at + 1 :]]
    pairs = zip(PageKeys(4, prompt).keys, PageKeys(4, other).keys, strict=True)
    assert [mine == theirs for mine, theirs in pairs] == [page < at // 4 for page in range(3)]


def test_with_lookahead_the_token_behind_a_page_belongs_to_it():
    ours, theirs = PageKeys(4, [1, 2, 3, 4, 5], lookahead=1), PageKeys(4, [1, 2, 3, 4, 6], lookahead=1)
    assert len(ours.keys) == 1 and ours.keys != theirs.keys
    assert PageKeys(4, [1, 2, 3, 4], lookahead=1).keys == []


def test_same_page_at_another_place_has_another_key():
    first, second = PageKeys(2, [7, 8, 7, 8]).keys
    assert first != second


def test_packed_tokens_have_the_same_keys():
    prompt = [5, 0, 2**31 - 1, 7, 9]
    packed = pack_tokens(prompt)
    assert unpack_tokens(packed) == prompt
    assert PageKeys(2, packed, lookahead=1).keys == PageKeys(2, prompt, lookahead=1).keys
    assert PageKeys(2, packed).num_tokens == 5


def test_a_64k_prompt_is_hashed_in_milliseconds():
    prompt = list(range(65_536))
    best = min(_seconds(lambda: PageKeys(64, prompt)) for _ in range(5))
    assert best < 0.02
    print(f"64K prompt, pages of 64: {best * 1e3:.2f} ms")


def _seconds(action):
    start = time.thread_time()
    action()
    return time.thread_time() - start
