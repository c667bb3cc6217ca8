"""What a step log says of limits, memory and cycles."""

import json

import pytest

from reports.engine_log import idle_share, in_windows, instance_views, step_lines, verify_cycle


def line(step, t_s, **more):
    return {"instance": "d0", "step": step, "t_s": t_s, "kind": "verify", "rows": 2, "running": 2, **more}


PHASES = {"draft_s": 0.01, "verify_s": 0.06, "accept_s": 0.001, "commit_s": 0.002}


def test_a_torn_last_line_and_foreign_lines_are_left_out(tmp_path):
    good = json.dumps(line(0, 1.0))
    (tmp_path / "engine.jsonl").write_text(f'{good}\n[1]\n{{"no": "time"}}\n{good[:20]}')
    assert [found["step"] for found in step_lines(tmp_path)] == [0]
    assert step_lines(tmp_path / "nowhere") == []


def test_a_log_that_grew_is_read_again(tmp_path):
    file = tmp_path / "engine.jsonl"
    file.write_text(json.dumps(line(0, 1.0)) + "\n")
    assert len(step_lines(tmp_path)) == 1
    with file.open("a") as log:
        log.write(json.dumps(line(1, 2.0)) + "\n")
    assert len(step_lines(tmp_path)) == 2


@pytest.mark.parametrize("clock", [0.0, 1.7e9], ids=["monotonic", "wall"])
def test_only_steps_inside_a_window_count(clock):
    client = {"passes": [{"t0_monotonic_s": 10.0, "t0_unix_s": 1.7e9 + 10, "duration_s": 5.0}]}
    lines = [line(step, clock + t) for step, t in enumerate((9.9, 10.0, 14.9, 15.1))]
    assert [found["step"] for found in in_windows(lines, client)] == [1, 2]
    assert in_windows(lines, {}) == lines


def test_a_cycle_is_the_median_gap_of_steps_that_follow_each_other():
    times = [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 5.0]  # between the last two lie steps of another kind
    steps = [line(i if t < 1 else 90, t, **PHASES) for i, t in enumerate(times)]
    cycle = verify_cycle(steps)
    assert cycle is not None
    assert cycle.cycle_ms == pytest.approx(100.0)
    assert cycle.phases_ms == pytest.approx({"draft": 10.0, "verify": 60.0, "accept": 1.0, "commit": 2.0})
    assert cycle.other_ms == pytest.approx(27.0)


def test_plain_decode_steps_and_too_few_steps_have_no_cycle():
    assert verify_cycle([line(i, i / 10, **PHASES) | {"kind": "decode"} for i in range(20)]) is None
    assert verify_cycle([line(i, i / 10, **PHASES) for i in range(5)]) is None


def test_an_older_log_without_limits_gives_none_and_no_guess():
    (view,) = instance_views([line(0, 1.0, pages_total=10, pages_used=4, slots_total=3, slots_used=1)])
    assert (view.running_limit, view.page_bytes, view.slot_bytes) == (None, None, None)
    assert (view.pages_total, view.pages_used_p50, view.most_running) == (10, 4.0, 2)


def test_a_device_idles_where_no_step_ran_in_the_middle_of_a_pass():
    client = {"passes": [{"t0_monotonic_s": 0.0, "t0_unix_s": 1.7e9, "duration_s": 10.0}]}
    lines = [line(step, 0.05 + step / 10, device_s=0.075) for step in range(100)]
    lines += [line(0, 5.0, device_s=3.0) | {"instance": "p0"}]
    assert idle_share(lines, client, {"d0"}) == pytest.approx(0.25)
    assert idle_share(lines[20:40], client, {"d0"}) == pytest.approx(0.75)
    assert idle_share([line(0, 5.0)], client, {"d0"}) is None
    assert idle_share(lines, {}, {"d0"}) is None
