"""A scripted instance that the tests of one module share."""

from collections.abc import Iterator

import httpx
import pytest

from tests.support.serving import Server, serving

RULES = {
    # first prompt token -> how the request is served
    "410": {"step_s": 0.01},  # "Ada"
    "900": {"step_s": 0.02},
    "901": {"refuse_status": 503, "refuse_error": "the queue is full; try again in a moment"},
    "902": {"refuse_status": 400, "refuse_error": "the worker refuses this request"},
    "903": {"fail_after": 3, "step_s": 0.2},
    "904": {"width": 4},
    "905": {"cached": 5},
    "906": {"delay_s": 0.3},
    "907": {"step_s": 0.2},
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("model"), {"rules": RULES}) as running:
        yield running


@pytest.fixture
def client(server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=20) as made:
        yield made
