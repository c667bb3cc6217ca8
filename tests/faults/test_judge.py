import pytest

from tests.support.cluster import Ask

WANTED = ([1, 2, 3, 4], "186\u053a 640")


@pytest.mark.parametrize(
    ("tokens", "text", "finish", "verdict"),
    [
        ([1, 2], "186", "length", "exact"),
        ([1, 2], "186\ufffd", "length", "exact"),
        ([1, 2], "186\ufffd\ufffd", "length", "wrong"),
        ([1, 2], "187\ufffd", "length", "wrong"),
        ([1, 3], "186\ufffd", "length", "wrong"),
        ([1], "186", "length", "wrong"),
        ([1, 2], "186", "abort", "wrong"),
    ],
)
def test_a_finished_answer_is_exact_or_wrong_and_a_cut_character_is_no_error(tokens, text, finish, verdict):
    ask = Ask([7], 2, tokens=tokens, text=text, finish=finish, is_finished=True)
    assert ask.verdict(WANTED) == verdict


def test_an_answer_without_an_end_and_without_an_error_is_wrong():
    assert Ask([7], 2, text="186").verdict(WANTED) == "wrong"
    assert Ask([7], 2, text="186", error="cut").verdict(WANTED) == "clean"
    assert Ask([7], 2, text="186\ufffd", error="cut").verdict(WANTED) == "wrong"


@pytest.mark.parametrize(("text", "verdict"), [("186\ufffd", "clean"), ("187\ufffd", "wrong"), ("186\ufffd1", "wrong")])
def test_an_abort_may_cut_a_character_and_nothing_else(text, verdict):
    assert Ask([7], 2, text=text, error="aborted", finish="abort").verdict(WANTED) == verdict
