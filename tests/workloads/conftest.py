"""What the tests of the workloads share: one call that measures a workload against a scripted server."""

import dataclasses
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from fault_server import Script, serve
from measuring import Run, make_workload

from workloads.client import Target, run_workload
from workloads.metrics import write_session_metrics
from workloads.records import read_chunks, read_requests


@pytest.fixture
def measure(tmp_path):
    """Measure a workload against a scripted server (or against one that runs already)."""
    count = iter(range(1000))

    def run(script=None, *, server=None, workload=None, target=None, metrics=None, processes=None, **changes):
        folder = tmp_path / f"run{next(count)}"
        workload = workload or make_workload(**changes)

        def against(server):
            where = dataclasses.replace(target or Target(url=server.url), url=server.url)
            if where.metrics_urls:
                where = dataclasses.replace(where, metrics_urls=(server.url,))
            client = run_workload(workload, where, folder, progress=False, processes=processes)
            body = write_session_metrics(folder, **(metrics or {}))
            return Run(body, read_requests(folder), read_chunks(folder), client, server, folder)

        if server is not None:
            return against(server)
        with serve(script or Script()) as own:
            return against(own)

    return run
