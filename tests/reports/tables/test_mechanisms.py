"""The bridge from published commits to rows holds: every item has a mechanism, every row exists."""

from pathlib import Path

import yaml

from reports.claims.claim import published_h200
from reports.tables.mechanisms import MECHANISMS

LADDERS = Path(__file__).parents[3] / "workflows" / "config" / "ladders.yaml"


def test_every_published_item_has_a_mechanism_and_none_is_made_up():
    software = published_h200()["software"]
    items = {one["item"] for one in (*software["custom_commits"], *software["already_in_base"])}
    assert items == set(MECHANISMS)


def test_every_row_that_a_mechanism_names_exists():
    suites = yaml.safe_load(LADDERS.read_text())["suites"]
    rows = {f"{suite}/{row['id']}" for suite, body in suites.items() for row in body["rows"]}
    assert {one.row for one in MECHANISMS.values() if one.row} <= rows
