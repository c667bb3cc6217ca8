"""The order in which sessions were asked for is kept with its seed, and the report shows it."""

import json
from pathlib import Path

from reports.material import collect
from reports.results import load_results
from reports.tables.evidence import orders_table
from workflows.order_log import note_order
from workflows.targets import Selection


def selection(seed: int, sessions: int = 2) -> Selection:
    rows = ["decode/baseline", "decode/fp8_kv", "decode/kv_radix"]
    return Selection({"testbed": "cpu", "engine": "default", "rows": rows, "sessions": sessions, "seed": seed,
                      "on_failure": "record"})  # fmt: skip


def test_each_selection_is_noted_once_with_its_seed_and_shown(tmp_path: Path) -> None:
    for seed in (3, 3, 4):
        note_order(selection(seed), tmp_path)
    log = tmp_path / "cpu" / "orders.jsonl"
    noted = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["seed"] for line in noted] == [3, 4]
    assert noted[0]["order"] == [folder.removeprefix("cpu/") for folder in selection(3).folders]
    assert noted[0]["order"] != noted[1]["order"]
    with log.open("a") as file:
        file.write('{"seed": 5, "ord')
    rows = orders_table(collect(load_results(tmp_path / "cpu"))).frame.to_dict("records")
    assert [(row["seed"], row["sessions"], row["cells"]) for row in rows] == [(3, 2, 3), (4, 2, 3)]
    assert rows[0]["order"].split() == noted[0]["order"]
