"""Numbers as a reader sees them."""

import math

import pandas as pd
import pytest

from reports.estimates import Estimate
from reports.tables.table import Table, show, times, with_interval


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"), (math.nan, "–"), (pd.NA, "–"), (True, "yes"), (12027, "12,027"), (12026.62, "12,027"),
        (209.04, "209.0"), (4.0, "4.00"), (0.9999, "1.000"), (0.00012345, "0.000123"), (-47.66, "-47.66"),
        ([0.75, 0.998], "0.750 to 0.998"), (["a", "b", "c"], "a, b, c"), ("word", "word"),
    ],
)  # fmt: skip
def test_values_as_texts(value, text):
    assert show(value) == text


def test_an_interval_is_shown_only_where_there_is_one():
    assert with_interval(Estimate(12.0, 11.0, 13.0, 3)) == "12.00 [11.00, 13.00] n=3"
    assert with_interval(Estimate(12.0, math.nan, math.nan, 1)) == "12.00 n=1"
    assert with_interval(Estimate(math.nan, math.nan, math.nan, 0)) == "–"
    assert (times(4.3234), times(math.nan)) == ("4.32x", "–")


def test_a_csv_keeps_fifteen_digits_and_a_mean_of_one_value_is_that_value():
    frame = pd.DataFrame([{"a": 1 / 3, "b": math.exp(math.log(100.0))}])
    table = Table(name="t", title="", caption="", frame=frame, headers={"a": "A"})
    assert table.csv().splitlines()[1] == "0.333333333333333,100"
    assert table.display.to_dict("records") == [{"A": "0.333"}]
