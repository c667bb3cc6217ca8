"""Every row of the table over real processes, real NIXL and the real router. The reduced set runs everywhere."""

import pytest

from stack.models.tiny import write_tiny
from tests.faults.scenarios import table
from tests.faults.stage import SETTINGS, Stage, problems
from tests.support.cluster import EXACT, Cluster
from tests.support.serving import Server


@pytest.fixture(scope="module")
def stage(tmp_path_factory):
    model = tmp_path_factory.mktemp("tiny")
    write_tiny(model, dtype="float32")
    single = Server(model, EXACT, worker="stack.engine")
    cluster = Cluster(tmp_path_factory.mktemp("cluster"), model, 2, SETTINGS)
    set_up = Stage(cluster)
    try:
        set_up.learn(single.wait_ready(180).url)
        single.stop()
        cluster.start_router()
        yield set_up
    finally:
        single.stop()
        set_up.close()
        cluster.close()


def rows():
    return [
        pytest.param(row, id=str(row), marks=pytest.mark.slow if row.ci else pytest.mark.nightly) for row in table()
    ]


@pytest.mark.parametrize("row", rows())
def test_the_fault_is_survived(stage, row):
    assert problems(stage.play(row)) == []


def test_the_table_has_the_rows_that_were_promised():
    names = [str(row) for row in table()]
    assert len(names) == len(set(names)) >= 40
    assert 8 <= sum(row.ci for row in table()) <= 14
