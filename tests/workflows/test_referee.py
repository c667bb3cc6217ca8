"""Turns of a pair: their order, never two at once, and nobody left waiting for a side that died or dawdles."""

import contextlib
import random
import socket
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workflows.errors import SessionError
from workflows.referee import Referee, order

SIDES = ("candidate", "baseline")


class Client:
    """A load client's end, driven step by step."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(0)
        self._socket.connect(str(path))
        self._text = ""

    def say(self, word: str) -> None:
        self._socket.sendall(f"{word}\n".encode())

    def heard(self) -> list[str]:
        with contextlib.suppress(BlockingIOError):
            self._text += self._socket.recv(4096).decode()
        *lines, self._text = self._text.split("\n")
        return lines

    def die(self) -> None:
        self._socket.close()


def settled(referee: Referee) -> None:
    for _ in range(4):  # a listener, a word, a loss, and what follows from it
        referee.step(0)


@pytest.fixture
def pair() -> Iterator[tuple[Referee, dict[str, Client]]]:
    with Referee(SIDES, 3, max_pass_s=60) as referee:
        clients = {side: Client(referee.path(side)) for side in SIDES}
        yield referee, clients
        for client in clients.values():
            client.die()


def ready(referee: Referee, clients: dict[str, Client]) -> None:
    for client in clients.values():
        client.say("ready")
    settled(referee)


@pytest.mark.parametrize("passes", [1, 2, 3, 10, 31])
def test_turns_go_abba_and_each_side_has_as_many(passes: int) -> None:
    turns = order(("A", "B"), passes)
    assert "".join(turns).startswith("ABBAABBA"[: 2 * passes])
    assert Counter(turns) == {"A": passes, "B": passes}
    places = {side: [i for i, turn in enumerate(turns) if turn == side] for side in "AB"}
    assert abs(sum(places["A"]) - sum(places["B"])) <= 1, "a steady drift meets both sides alike"


@settings(max_examples=60, deadline=None)
@given(passes=st.integers(1, 6), seed=st.integers(0, 2**32))
def test_one_side_holds_the_baton_at_a_time_whatever_order_things_happen_in(passes: int, seed: int) -> None:
    draw = random.Random(seed)
    with Referee(SIDES, passes, max_pass_s=60) as referee:
        clients = {side: Client(referee.path(side)) for side in SIDES}
        not_ready, holders, turns, let_go = set(SIDES), set[str](), list[str](), set[str]()
        while len(let_go) < 2:
            able = sorted(not_ready | holders)
            if able and draw.random() < 0.5:
                side = draw.choice(able)
                clients[side].say("ready" if side in not_ready else "done")
                not_ready.discard(side)
                holders.discard(side)
            else:
                referee.step(0)
            for side, client in clients.items():
                for word in client.heard():
                    if word == "end":
                        let_go.add(side)
                        continue
                    assert word == "go" and not not_ready, "no turn before both are ready"
                    holders.add(side)
                    turns.append(side)
            assert len(holders) <= 1
        assert turns == order(SIDES, passes) and referee.is_complete and referee.stopped is None
        for client in clients.values():
            client.die()
        settled(referee)
        assert referee.stopped is None, "leaving after the end is no loss"


def test_the_side_that_waits_hears_of_the_others_death_in_its_turn(pair: tuple[Referee, dict[str, Client]]) -> None:
    referee, clients = pair
    ready(referee, clients)
    assert clients["candidate"].heard() == ["go"]
    clients["candidate"].die()
    settled(referee)
    assert clients["baseline"].heard() == ["stop the load client of the candidate ended in turn 1 of 6"]


def test_the_side_that_measures_hears_of_the_others_death_when_its_turn_is_over(
    pair: tuple[Referee, dict[str, Client]],
) -> None:
    referee, clients = pair
    ready(referee, clients)
    clients["baseline"].die()
    settled(referee)
    clients["candidate"].say("done")
    settled(referee)
    assert clients["candidate"].heard() == ["go", "stop the load client of the baseline ended in turn 1 of 6"]


def test_a_client_that_comes_after_the_end_of_its_pair_is_told_at_once() -> None:
    with Referee(SIDES, 3, max_pass_s=60) as referee:
        referee.stop("the session of the candidate ended before its time")
        late = Client(referee.path("baseline"))
        settled(referee)
        assert late.heard() == ["stop the session of the candidate ended before its time"]
        late.die()


def test_who_keeps_the_baton_too_long_ends_the_pair_for_both() -> None:
    with Referee(SIDES, 3, max_pass_s=0.01) as referee:
        clients = {side: Client(referee.path(side)) for side in SIDES}
        ready(referee, clients)
        time.sleep(0.02)
        settled(referee)
        sentence = "stop the candidate kept the baton for more than 0.01 s"
        assert [client.heard()[-1] for client in clients.values()] == [sentence] * 2
        for client in clients.values():
            client.die()


@pytest.mark.parametrize("word", ["done", "ready", "go", "x" * 5000])
def test_a_word_out_of_turn_ends_the_pair(pair: tuple[Referee, dict[str, Client]], word: str) -> None:
    referee, clients = pair
    ready(referee, clients)
    clients["baseline"].say(word)
    settled(referee)
    assert referee.stopped is not None and "baseline" in referee.stopped
    assert clients["candidate"].heard()[-1].startswith("stop ")


def test_a_second_client_of_a_side_ends_the_pair(pair: tuple[Referee, dict[str, Client]]) -> None:
    referee, clients = pair
    ready(referee, clients)
    Client(referee.path("candidate")).die()
    settled(referee)
    assert referee.stopped == "two clients came as the candidate"


def test_no_socket_is_left() -> None:
    with Referee(SIDES, 3, max_pass_s=60) as referee:
        folder = referee.path("candidate").parent
        assert folder.is_dir()
    assert not folder.exists()


def test_a_folder_too_deep_for_a_socket_is_refused_with_the_way_out(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    with pytest.raises(SessionError, match=r"may have 107 bytes and .* set TMPDIR to a shorter folder"):
        Referee(SIDES, 3, max_pass_s=60, folder=deep)
