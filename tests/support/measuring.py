"""A small workload and what a run of it leaves, for tests of the client, the metrics and the rules."""

import dataclasses
from pathlib import Path

from workloads.spec import parse

BASE = {
    "schema": "workload/1",
    "name": "unit",
    "identity": {"row": "unit", "session": 0},
    "source": {"kind": "random", "input_len": 64, "output_len": 8},
    "load": {"kind": "closed", "concurrency": 4},
    "passes": 1,
    "requests_per_pass": 20,
    "cache": {"intent": "cold", "granularity_tokens": 16},
    "limits": {"min_window_s": 0.0, "max_loop_lag_p99_ms": 200.0, "min_concurrency_share": 0.5},
    "timeouts": {"ready_s": 10.0, "stall_s": 5.0, "deadline_s": 60.0},
}


def merged(base, changes):
    """`base` with `changes` put in, level by level."""
    result = dict(base)
    for key, value in changes.items():
        inner = isinstance(value, dict) and isinstance(result.get(key), dict) and "kind" not in value
        result[key] = merged(result[key], value) if inner else value
    return result


def make_workload(**changes):
    """The base workload with changes; a part that names its `kind` replaces the base's."""
    return parse(merged(BASE, changes))


@dataclasses.dataclass
class Run:
    """A measured run and everything it left."""

    body: dict
    requests: object
    chunks: object
    client: dict
    server: object
    folder: Path

    @property
    def verdict(self):
        """VALID or INVALID."""
        return self.body["validity"]["verdict"]

    @property
    def failed(self):
        """Names of the rules that failed."""
        return {rule["rule"] for rule in self.body["validity"]["rules"] if rule["verdict"] == "fail"}

    @property
    def reasons(self):
        """The one list of reasons, as text."""
        return "; ".join(self.body["validity"]["reasons"])

    @property
    def values(self):
        """The values, of a valid run only."""
        assert self.verdict == "VALID", self.reasons
        return self.body["metrics"]
