"""`np1d tune moe` with a scripted layer: the table, resuming, refusals; and the check of numerics on the CPU."""

import json

import pytest
import torch

from stack.core.errors import ConfigError
from stack.kernels.catalog import OPS
from stack.kernels.moe import torch_grouped
from stack.kernels.moe.routes import drawn_routes, read_routes, write_routes
from stack.kernels.moe.tables import Launch, Tile, load_table
from stack.kernels.quantized import Fp8Weight
from stack.layers.weights import Experts
from stack.tune_moe.__main__ import main
from stack.tune_moe.measure import error_of

BEST = Tile(16, Launch(8, 2), Launch(4, 3))


class ScriptedLayer:
    """Small tiles are fast; `asked` counts timings."""

    def __init__(self, error=1e-3):
        self.asked, self.given_error = 0, error

    def untuned(self, num_rows):
        return Tile(64, Launch(4, 4), Launch(4, 4))

    def timer(self, num_rows, routes):
        assert all(ids.shape == (num_rows, 2) for batches in routes.values() for ids in batches)

        def timed(tile, part, route):
            self.asked += 1
            pairs = ((tile.up, BEST.up), (tile.down, BEST.down))
            return tile.rows + sum(abs(a.warps - b.warps) + abs(a.stages - b.stages) for a, b in pairs) + num_rows

        return timed

    def error(self, tile):
        return self.given_error


@pytest.fixture
def tune(tmp_path):
    def run(layer, *more, routes="power:1.2"):
        out = tmp_path / "table.json"
        arguments = ["--routes", routes, "--rows", "8,64", "--out", str(out), "--num-routes", "3", *more]
        return main(arguments, lambda shape: layer), out

    return run


def test_the_table_names_its_machine_versions_and_routes_and_serves_the_nearest_count(tune):
    code, out = tune(ScriptedLayer())
    assert code == 0
    body = json.loads(out.read_text())
    assert body["shape"] | {"gpu": "cpu"} == body["shape"]
    assert body["versions"]["torch"] == torch.__version__
    assert body["routes"]["source"] == "power:1.2"
    table = load_table(str(out))
    assert table.tile(1) == table.tile(20) == table.tile(5000) == BEST
    assert body["rows"]["8"]["gain"] > 1 and body["rows"]["8"]["untuned"]["held"]["mean_us"] > 0


def test_an_interrupted_search_goes_on_and_times_nothing_twice(tune, tmp_path):
    whole = ScriptedLayer()
    tune(whole, "--journal", str(tmp_path / "other.jsonl"))[1].unlink()
    first, second = ScriptedLayer(), ScriptedLayer()
    times = iter([0.0] * 40 + [1e9] * 10000)
    code, out = main_with_clock(tune, first, times)
    assert code == 3 and not out.exists()
    code, out = tune(second)
    assert code == 0 and load_table(str(out)).tile(8) == BEST
    assert 0 < first.asked < whole.asked and first.asked + second.asked == whole.asked


def main_with_clock(tune, layer, times):
    from stack.tune_moe import __main__ as command
    from stack.tune_moe.tuning import tune as real

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command, "tune", lambda job, found: real(job, found, clock=lambda: next(times)))
        return tune(layer, "--limit-s", "10")


def test_a_journal_of_other_routes_is_refused(tune, capsys):
    assert tune(ScriptedLayer())[0] == 0
    assert tune(ScriptedLayer(), routes="balanced")[0] == 2
    assert "name another --journal" in capsys.readouterr().err


def test_a_tile_that_computes_something_else_is_never_written(tune, capsys):
    code, out = tune(ScriptedLayer(error=0.3))
    assert code == 2 and not out.exists()
    assert "computes something else" in capsys.readouterr().err


def test_a_table_of_another_shape_is_refused_with_both_values(tune):
    _, out = tune(ScriptedLayer())
    table = load_table(str(out))
    from dataclasses import replace

    table.check(table.shape)
    with pytest.raises(ConfigError, match="experts 72, here 8; gpu cpu, here NVIDIA H100"):
        table.check(replace(table.shape, experts=8, gpu="NVIDIA H100"))


@pytest.mark.parametrize("text", ["{}", "[]", '{"schema": "moe_tiles/9"}', "no json"])
def test_a_file_that_is_no_table_is_refused(tmp_path, text):
    (tmp_path / "t.json").write_text(text)
    with pytest.raises(ConfigError, match=r"t\.json"):
        load_table(str(tmp_path / "t.json"))
    with pytest.raises(ConfigError, match="np1d tune moe writes one"):
        load_table("no_such_table")


def test_routes_survive_their_file_and_are_split_by_request(tmp_path):
    drawn = drawn_routes("power:1.5", 72, 2, num_requests=20, num_rows=5)
    write_routes(tmp_path / "r.safetensors", drawn.layers, 72, {"source": "test"})
    routes = read_routes(tmp_path / "r.safetensors")
    assert routes.notes == {"source": "test"} and torch.equal(routes.layers[1].ids_RK, drawn.layers[1].ids_RK)
    tuning, held = routes.split()
    for number in routes.layers:
        ours, theirs = (set(part.layers[number].request_R.tolist()) for part in (tuning, held))
        assert len(ours) == 15 and len(theirs) == 5 and not ours & theirs


def test_drawn_routes_choose_different_experts_and_are_as_skewed_as_asked():
    def share_of_busiest(kind):
        ids = drawn_routes(kind, 72, 8).layers[0].ids_RK.long()
        assert torch.all(torch.sort(ids, dim=1).values.diff(dim=1) > 0)
        return torch.bincount(ids.flatten(), minlength=72).max().item() / ids.numel()

    assert share_of_busiest("balanced") < 1.2 / 72
    assert share_of_busiest("power:1.2") > 4 / 72
    with pytest.raises(ConfigError, match="balanced or power"):
        drawn_routes("zipf", 8, 2)


def test_uneven_scales_tell_a_right_product_from_one_that_mixes_them_up():
    activation = OPS["swiglu_quant"].bind("auto", "cpu")

    def layer(*call, scales):
        x, ids, weights, experts = call
        mixed = Experts(*(Fp8Weight(w.codes_NK, scales(w.scale_NK)) for w in (experts.gate_up, experts.down)))
        return torch_grouped.moe(x, ids, weights, mixed, limit=10.0, swiglu_quant=activation)

    def error(scales):
        return error_of(lambda *c: layer(*c, scales=scales), activation, torch.float32, "cpu", rows=3)

    assert error(lambda scale: scale) < 1e-3
    assert error(lambda scale: scale.roll(1, -1)) > 0.1
    assert error(lambda scale: scale.mean().expand_as(scale)) > 0.1
