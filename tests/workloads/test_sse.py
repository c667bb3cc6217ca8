"""The event splitter gives the same payloads however the network cut the bytes."""

from hypothesis import given, settings
from hypothesis import strategies as st

from workloads.sse import SseSplitter

LINE = st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), max_size=12)


@st.composite
def streams(draw):
    """A stream of events with comments, other fields and any line end, and the payloads in it."""
    text, payloads = "", []
    for lines in draw(st.lists(st.lists(LINE, min_size=1, max_size=3), max_size=6)):
        end = draw(st.sampled_from(["\n", "\r\n", "\r"]))
        if draw(st.booleans()):
            text += f": keep alive{end}{draw(st.sampled_from(['', end]))}"
        if draw(st.booleans()):
            text += f"event: message{end}id: 7{end}"
        for line in lines:
            space = " " if line.startswith(" ") else draw(st.sampled_from(["", " "]))
            text += f"data:{space}{line}{end}"
        text += end
        payloads.append("\n".join(lines).encode())
    return text.encode(), payloads


@settings(max_examples=300, deadline=None)
@given(streams(), st.lists(st.integers(min_value=1, max_value=40), max_size=60))
def test_any_split_gives_the_same_events(stream, sizes):
    data, payloads = stream
    splitter, got, at = SseSplitter(), [], 0
    for size in [*sizes, len(data)]:
        got += splitter.feed(data[at : at + size])
        at += size
    assert got == payloads
    assert splitter.is_clean


@settings(max_examples=100, deadline=None)
@given(streams())
def test_single_bytes_give_the_same_events(stream):
    data, payloads = stream
    splitter = SseSplitter()
    assert [p for i in range(len(data)) for p in splitter.feed(data[i : i + 1])] == payloads


def test_a_character_cut_in_two_is_whole_again():
    splitter = SseSplitter()
    data = "data: é\n\n".encode()
    assert splitter.feed(data[:7]) == [] and not splitter.is_clean
    assert splitter.feed(data[7:]) == ["é".encode()]


def test_the_space_after_the_colon_is_optional():
    assert SseSplitter().feed(b"data:{}\n\ndata: {}\n\ndata:  x\n\n") == [b"{}", b"{}", b" x"]


def test_an_unfinished_event_is_not_given():
    splitter = SseSplitter()
    assert splitter.feed(b'data: {"a": 1}\n') == []
    assert not splitter.is_clean
