"""A session takes the GPUs that its user shows it, and refuses when they are too few."""

import pytest

from workflows.errors import SessionError
from workflows.supervisor.devices import host_gpus, on_this_host


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
