"""The search finds the edge, with confidence, keeps its probes and goes on after an interruption."""

import pytest
from fault_server import Script, serve
from measuring import make_workload

from workloads.client import Target
from workloads.client_facts import read_client_facts
from workloads.files import read_json
from workloads.operating_point import InvalidProbeError, Probe, Prober, main, search
from workloads.slo import PUBLISHED, Slo

TTFT = Slo(metric="ttft", statistic="mean", bound=6.0, unit="s")


def model(concurrency, repeat):
    """A server whose TTFT is a tenth of a second for each request in flight, and whose throughput saturates."""
    return {
        "ttft_mean_s": 0.1 * concurrency,
        "tpot_mean_ms": 10.0,
        "output_tok_s": 1000 * concurrency / (concurrency + 9),
    }


@pytest.mark.parametrize("edge", [1, 2, 3, 37, 59, 100])
def test_the_edge_is_found_and_few_probes_are_spent(edge):
    level = Slo(metric="ttft", statistic="mean", bound=0.1 * edge + 0.05, unit="s")
    seen = []
    result = search(model, [level], low=1, high=256, repeats=1, note=seen.append)
    assert edge - max(1, edge // 32) < result["largest_holding"] <= edge
    assert result["best"]["concurrency"] == result["largest_holding"] < result["smallest_breaking"]
    assert result["confidence"] == "indicative" and len(seen) <= 14


def test_nothing_holds_or_everything_holds():
    nothing = search(
        lambda c, i: model(c, i) | {"ttft_mean_s": 9.0}, [TTFT], low=1, high=8, repeats=1, note=lambda p: 0
    )
    assert nothing["best"] is None and nothing["smallest_breaking"] == 1
    everything = search(model, [TTFT], low=3, high=20, repeats=1, note=lambda p: 0)
    assert everything["largest_holding"] == 20 and everything["smallest_breaking"] is None


def test_below_a_first_probe_that_breaks_it_looks_for_one_that_holds():
    level = Slo(metric="ttft", statistic="mean", bound=1.15, unit="s")
    seen = []
    result = search(model, [level], low=47, high=140, repeats=1, note=seen.append)
    assert [probe.concurrency for probe in seen] == [47, 23, 11, 17, 14, 12]
    assert (result["largest_holding"], result["smallest_breaking"], result["ended"]) == (11, 12, "")


def test_what_was_found_stands_when_time_is_up_or_a_later_probe_is_invalid():
    def broken(concurrency, repeat):
        if concurrency > 8:
            raise InvalidProbeError("window: 50 s")
        return model(concurrency, repeat)

    invalid = search(broken, [TTFT], low=4, high=64, repeats=1, note=lambda p: 0)
    assert (invalid["best"]["concurrency"], invalid["ended"]) == (8, "INVALID: window: 50 s")
    late = search(model, [TTFT], low=4, high=64, repeats=1, note=lambda p: 0, may_go_on=lambda: False)
    assert late["best"]["concurrency"] == 4 and "no time" in late["ended"]
    with pytest.raises(InvalidProbeError):
        search(broken, [TTFT], low=16, high=64, repeats=1, note=lambda p: 0)


def test_a_mean_inside_with_a_bound_outside_does_not_hold():
    values = [{"ttft_mean_s": t, "tpot_mean_ms": 1.0, "output_tok_s": 1.0} for t in (5.2, 5.9, 6.4)]
    probe = Probe(4, [TTFT], values)
    assert probe.upper(TTFT) == pytest.approx(5.8333 + 2.91999 * 0.60277 / 3**0.5, abs=1e-3)
    assert not probe.holds and Probe(4, [TTFT], values[:1]).holds


def test_a_level_without_a_value_does_not_hold():
    assert not Probe(1, PUBLISHED, [{"ttft_mean_s": 1.0, "tpot_mean_ms": None, "output_tok_s": 5.0}]).holds


def test_a_probe_that_contradicts_the_order_is_reported():
    def odd(concurrency, repeat):
        return model(concurrency, repeat) | {"ttft_mean_s": 9.0 if concurrency in (4, 6) else 1.0}

    assert not search(odd, [TTFT], low=1, high=8, repeats=1, note=lambda p: 0)["not_monotone"]
    result = search(lambda c, i: odd(c, i), [TTFT], low=5, high=12, repeats=1, note=lambda p: 0)
    assert result["largest_holding"] == 12


LEVEL = [{"metric": "ttft", "statistic": "mean", "bound": 0.25, "unit": "s"}]


def test_a_real_search_keeps_its_probes_and_goes_on(tmp_path):
    workload = make_workload(
        slo=LEVEL, source={"kind": "random", "input_len": 8, "output_len": 2}, requests_per_pass=16,
        load={"kind": "closed", "concurrency": 1},
    )  # fmt: skip
    spec = tmp_path / "w.json"
    spec.write_text(workload.model_dump_json())
    with serve(Script(ttft_s=0.1, slots=4, caches=False)) as server:
        command = [str(spec), "--url", server.url, "--out", str(tmp_path / "o"), "--high", "32", "--repeats", "1"]
        command.append("--no-progress")
        assert main(command) == 0
        count = server.seen.num_requests
        first = read_json(tmp_path / "o" / "operating_point.json")
        assert main(command) == 0
        assert server.seen.num_requests == count, "nothing is measured twice"
    assert first == read_json(tmp_path / "o" / "operating_point.json")
    kept = read_client_facts(tmp_path / "o" / "client.json")
    assert kept["workload"]["load"]["concurrency"] == first["best"]["concurrency"]
    counts = {
        int(probe.parent.parent.name[1:]): read_client_facts(probe)["workload"]["requests_per_pass"]
        for probe in (tmp_path / "o").glob("c*/r0/client.json")
    }
    assert counts[1] == 16 and all(counts[c] == 16 * c for c in counts), (
        "without a least window they grow with the load"
    )
    assert 4 <= first["largest_holding"] <= 12, "four slots of 0.1 s hold 0.25 s up to about eight in flight"


def test_an_invalid_probe_ends_the_search(tmp_path):
    with serve(Script(stop_after=1)) as server:
        prober = Prober(make_workload(), Target(url=server.url), tmp_path, progress=False)
        with pytest.raises(InvalidProbeError, match="another length than requested"):
            prober.measure(2, 0)
