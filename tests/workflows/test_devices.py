"""A session takes the GPUs that its user shows it, and refuses when they are too few."""

import os
from pathlib import Path

import pytest

from workflows.errors import SessionError
from workflows.planner import plan_session
from workflows.supervisor.devices import check_there, host_gpus, on_this_host
from workflows.supervisor.preflight import check

FOUR = ["GPU-0a1", "GPU-0b2", "GPU-0c3", "GPU-0d4"]


def test_without_a_choice_a_plan_counts_as_the_host_does():
    assert host_gpus([0, 3], {}) == ["0", "3"]
    assert on_this_host({"CUDA_VISIBLE_DEVICES": "0,1"}, {})["CUDA_VISIBLE_DEVICES"] == "0,1"


@pytest.mark.parametrize(
    ("shown", "planned", "taken"),
    [("5", [0], ["5"]), ("4, 6,", [0, 1], ["4", "6"]), ("GPU-1a,GPU-2b", [1], ["GPU-2b"])],
)
def test_the_users_list_says_which_gpus_are_meant(shown, planned, taken):
    environ = {"CUDA_VISIBLE_DEVICES": shown}
    assert host_gpus(planned, environ) == taken
    env = on_this_host({"CUDA_VISIBLE_DEVICES": ",".join(map(str, planned)), "A": "b"}, environ)
    assert env == {"CUDA_VISIBLE_DEVICES": ",".join(taken), "CUDA_DEVICE_ORDER": "PCI_BUS_ID", "A": "b"}


@pytest.mark.parametrize("shown", ["", "3"])
def test_too_few_shown_gpus_are_refused_with_the_list(shown):
    with pytest.raises(SessionError, match=f"needs 2 GPUs and CUDA_VISIBLE_DEVICES={shown} shows"):
        host_gpus([0, 1], {"CUDA_VISIBLE_DEVICES": shown})


def test_a_process_without_gpus_keeps_its_environment():
    assert on_this_host({"A": "b"}, {"CUDA_VISIBLE_DEVICES": ""}) == {"A": "b"}


@pytest.mark.parametrize("shown", ["5", "0,4", "GPU-9", "-1", "all"])
def test_a_shown_gpu_that_is_not_there_is_named_with_those_that_are(shown):
    strange = shown.split(",")[-1]
    with pytest.raises(SessionError, match=rf"={shown} names {strange}, and this machine has GPUs 0 to 3; name those"):
        check_there(FOUR, {"CUDA_VISIBLE_DEVICES": shown})


@pytest.mark.parametrize("shown", ["3", "GPU-0b", "GPU-0d4,0", "MIG-7", ""])
def test_gpus_are_found_by_index_and_by_the_beginning_of_their_uuid(shown):
    check_there(FOUR, {"CUDA_VISIBLE_DEVICES": shown})


@pytest.mark.parametrize(
    ("shown", "sentence"),
    [
        ("5", "CUDA_VISIBLE_DEVICES=5 names 5, and this machine has GPUs 0 to 3"),
        ("", "needs 1 GPU and CUDA_VISIBLE_DEVICES= shows 0"),
    ],
)
def test_a_session_is_refused_before_it_starts_for_gpus_that_nvidia_smi_does_not_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shown: str, sentence: str
) -> None:
    lister = tmp_path / "nvidia-smi"
    lister.write_text("#!/bin/sh\nprintf '%s\\n' " + " ".join(FOUR) + "\n")
    lister.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)
    with pytest.raises(SessionError, match=sentence):
        check(plan_session("micro/kda_inputs_fused", "kernel", testbed_id="h200x1"), tmp_path)
