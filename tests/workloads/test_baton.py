"""Two real clients and a referee: their passes never overlap, prompts go on, and nobody waits for the dead."""

import itertools
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fault_server import Script, serve
from measuring import make_workload

from workflows.referee import Referee
from workloads.baton import BatonError
from workloads.client import Target, run_workload
from workloads.files import read_json, write_json
from workloads.metrics import write_session_metrics
from workloads.records import read_requests
from workloads.share import tickets_of
from workloads.sources import source_for
from workloads.spec import SpecError
from workloads.wire import wire_for

ROOT = Path(__file__).resolve().parents[2]
SIDES = ("candidate", "baseline")
TURNS = {
    "passes": 3,
    "requests_per_pass": 4,
    "warmup_requests": 1,
    "continued": True,
    "load": {"kind": "closed", "concurrency": 2, "handover": False, "keep_full": False},
    "source": {"kind": "shared_prefix", "input_len": 64, "output_len": 8, "shared_ratio": 0.5},
    "cache": {"intent": "primed", "flush": "before_session", "granularity_tokens": 16},
}


@pytest.fixture
def referee() -> Iterator[Referee]:
    with Referee(SIDES, TURNS["passes"], max_pass_s=30) as made:
        yield made


def start(referee: Referee, side: str, url: str, folder: Path) -> "subprocess.Popen[str]":
    write_json(folder / "workload.json", make_workload(**TURNS).model_dump(mode="json"))
    command = [
        sys.executable, "-m", "workloads.client", str(folder / "workload.json"), "--url", url, "--out", str(folder),
        "--baton", str(referee.path(side)), "--no-progress",
    ]  # fmt: skip
    return subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)


def spans(folder: Path) -> list[tuple[float, float]]:
    """From the first request of each pass to the end of its last one, on the clock that both sides share."""
    requests, starts = read_requests(folder), read_json(folder / "client.json")["passes"]
    return [
        (starts[index]["t0_monotonic_s"] + own["start_s"].min(), starts[index]["t0_monotonic_s"] + own["end_s"].max())
        for index, own in requests.groupby("pass_index")
    ]


def test_passes_of_two_clients_never_overlap_and_both_are_results(referee: Referee, tmp_path: Path) -> None:
    with serve(Script()) as one, serve(Script()) as two:
        clients = [
            start(referee, side, server.url, tmp_path / side) for side, server in zip(SIDES, (one, two), strict=True)
        ]
        while any(client.poll() is None for client in clients):
            referee.step(0.05)
        said = [client.communicate()[1] for client in clients]
    assert [client.returncode for client in clients] == [0, 0], said
    assert referee.is_complete and referee.stopped is None
    bodies = [write_session_metrics(tmp_path / side) for side in SIDES]
    assert [body["validity"]["verdict"] for body in bodies] == ["VALID", "VALID"], bodies
    turns = sorted((span, side) for side in SIDES for span in spans(tmp_path / side))
    assert [side for _, side in turns] == [SIDES[i] for i in (0, 1, 1, 0, 0, 1)]
    warm = [["warmup" in facts for facts in read_json(tmp_path / side / "client.json")["passes"]] for side in SIDES]
    assert warm == [[True, False, False]] * 2, "the first turn alone begins with a warm-up, apart from what is measured"
    assert all(earlier[0][1] < later[0][0] for earlier, later in itertools.pairwise(turns))


def test_a_client_whose_other_side_dies_keeps_its_records_and_says_why(referee: Referee, tmp_path: Path) -> None:
    with serve(Script()) as one, serve(Script(chunk_gap_s=0.2)) as two:
        clients = [
            start(referee, side, server.url, tmp_path / side) for side, server in zip(SIDES, (one, two), strict=True)
        ]
        while clients[0].poll() is None:
            referee.step(0.05)
            if (tmp_path / "candidate" / "client.json").exists() and clients[1].poll() is None:
                clients[1].kill()
        said = clients[0].communicate()[1]
        clients[1].communicate()
    assert clients[0].returncode == 5
    assert said.strip().startswith("error: the load client of the baseline ended in turn ")
    assert len(read_json(tmp_path / "candidate" / "client.json")["passes"]) == 1


def test_a_client_without_a_referee_ends_in_a_sentence(tmp_path: Path) -> None:
    with serve(Script()) as server, pytest.raises(BatonError, match="nobody hands out a baton"):
        run_workload(
            make_workload(**TURNS), Target(url=server.url), tmp_path / "out", progress=False, baton=tmp_path / "nobody"
        )


def test_a_referee_that_goes_lets_nobody_wait(tmp_path: Path) -> None:
    caught: list[BaseException] = []
    with serve(Script()) as server, Referee(SIDES, 3, max_pass_s=30) as referee:

        def run(**how: Any) -> None:
            try:
                run_workload(make_workload(**TURNS), Target(url=server.url), tmp_path / "out", progress=False, **how)
            except BatonError as error:
                caught.append(error)

        waiting = threading.Thread(target=run, kwargs={"baton": referee.path("candidate")})
        waiting.start()
        while not referee.has_heard("candidate"):
            referee.step(0.05)
        referee.close()
        waiting.join(timeout=20)
    assert [str(error) for error in caught] == ["the gate that handed out the baton has gone"]


def test_continued_passes_share_their_prefix_and_no_prompt() -> None:
    workload = make_workload(**TURNS)
    source, wire = source_for(workload), wire_for(workload)
    prompts = [
        tuple(talk[0].prompt.token_ids)
        for index in range(3)
        for talk in tickets_of(workload, source, wire, index, PHASES)
    ]
    assert len(set(prompts)) == len(prompts) == 12
    assert len({prompt[:32] for prompt in prompts}) == 1
    assert tuple(source.prefixes(workload.traffic_seed(2))[0].token_ids) == prompts[0][:32]


PHASES = ("warmup", "measured", "cooldown")


def test_what_is_continued_cannot_be_flushed_before_every_pass() -> None:
    with pytest.raises(SpecError, match="before_session or never"):
        make_workload(**TURNS | {"cache": {"intent": "primed", "flush": "before_pass"}})
