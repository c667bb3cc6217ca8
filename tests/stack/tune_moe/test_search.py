"""The search finds what a scripted device says is fastest, and nothing that only looks so."""

import random

import pytest

from stack.kernels.moe.tables import Launch, Tile
from stack.tune_moe.search import Search, Space, TileError

SPACE = Space(rows=(16, 32, 64), warps=(4, 8), stages=(2, 3, 4))
DEFAULT = Tile(32, Launch(4, 4), Launch(4, 4))
BEST = Tile(64, Launch(8, 3), Launch(4, 2))
COUNTS = {"tune": 5, "held": 3}


class Device:
    """Times grow with the distance from `best`; `wrong` changes single answers."""

    def __init__(self, best=BEST, wrong=lambda tile, part, route: None, steep=5.0) -> None:
        self.best, self.wrong, self.steep, self.asked = best, wrong, steep, []

    def __call__(self, tile, part, route):
        self.asked.append((tile, part, route))
        if (answer := self.wrong(tile, part, route)) is not None:
            return answer
        pairs = ((tile.up, self.best.up), (tile.down, self.best.down))
        away = abs(tile.rows - self.best.rows) / 16
        away += sum(abs(a.warps - b.warps) / 4 + abs(a.stages - b.stages) for a, b in pairs)
        return 100.0 + self.steep * away + route


def search(device, num_routes=COUNTS):
    return Search(device, SPACE, DEFAULT, num_routes=num_routes).run()


def test_the_fastest_tile_of_both_products_is_found_and_its_gain_is_that_of_held_out_routes():
    choice = search(Device())
    assert choice.tile == BEST and choice.default == DEFAULT
    assert choice.gain == pytest.approx(Device()(DEFAULT, "held", 1) / Device()(BEST, "held", 1))
    assert choice.num_timed <= SPACE.num_timed()


def test_any_best_tile_is_found_where_the_products_do_not_hinder_each_other():
    draw = random.Random(7)
    for _ in range(20):
        up, down = (Launch(draw.choice(SPACE.warps), draw.choice(SPACE.stages)) for _ in range(2))
        best = Tile(draw.choice(SPACE.rows), up, down)
        assert search(Device(best)).tile == best


def test_a_tile_that_only_the_tuning_routes_show_faster_is_refused():
    device = Device(wrong=lambda tile, part, route: 200.0 if tile == BEST and part == "held" else None)
    choice = search(device)
    assert choice.tile not in (BEST, DEFAULT)
    assert "do not show it faster" in choice.refused[0]


def test_a_tile_whose_slow_routes_are_slower_is_refused_though_its_mean_is_better():
    def wrong(tile, part, route):
        return 240.0 if tile == BEST and part == "tune" and route >= 17 else None

    device, counts = Device(wrong=wrong, steep=20.0), {"tune": 20, "held": 3}
    choice = search(device, counts)
    assert choice.tile not in (BEST, DEFAULT)
    assert "slow routes are slower" in choice.refused[0]


def test_the_untuned_tile_stays_where_nothing_holds():
    device = Device(wrong=lambda tile, part, route: 999.0 if tile != DEFAULT and part == "held" else None)
    choice = search(device)
    assert choice.tile == DEFAULT and choice.gain == 1.0 and len(choice.refused) == SPACE.num_confirmed


def test_tiles_that_the_device_cannot_run_are_counted_and_passed_over():
    def wrong(tile, part, route):
        if tile.rows == 64:
            raise TileError("out of shared memory")

    choice = search(Device(wrong=wrong))
    assert choice.tile == Tile(32, BEST.up, BEST.down)
    assert choice.num_unable == len(SPACE.launches)


def test_nothing_is_searched_where_the_untuned_tile_does_not_run():
    def wrong(tile, part, route):
        raise TileError("out of shared memory")

    with pytest.raises(TileError, match="nothing to compare with"):
        search(Device(wrong=wrong))


def test_confirmation_times_both_tiles_in_turn():
    device = Device()
    search(device)
    held = [(tile, route) for tile, part, route in device.asked if part == "held"]
    assert held == [(tile, route) for route in range(3) for tile in (BEST, DEFAULT)]
