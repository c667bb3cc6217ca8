import pytest

from tests.faults.soak import soak

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(3000)]


def test_half_an_hour_of_load_and_deaths_gives_no_wrong_token_and_no_leak():
    assert soak(minutes=30).problems() == []
