import pytest

from stack.config import EngineConfig, with_settings
from stack.core.errors import ConfigError


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("bootstrap_timeout_s", 0.0),
        ("transfer_timeout_s", -1.0),
        ("abort_ack_timeout_s", 3.0),
        ("heartbeat_interval_s", 0.0),
        ("heartbeat_interval_s", 1e-9),
        ("delay_s", -0.1),
    ],
)
def test_times_that_cannot_work_are_refused(name, value):
    with pytest.raises(ConfigError, match=f"disagg.{name}"):
        with_settings(EngineConfig(), {f"disagg.{name}": value})
