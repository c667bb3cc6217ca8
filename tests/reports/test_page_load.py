"""The formula of pages in use, and sessions against it."""

import pytest

from reports.page_load import PageLoad, pages_of_formula

PUBLISHED = PageLoad(page=256, input_len=65_536, output_len=1024, shared_len=65_470)


def test_without_sharing_every_request_holds_all_its_pages():
    assert PUBLISHED.pages(56, is_shared=False, at_end=True) == 56 * 260
    assert PUBLISHED.pages(0, is_shared=True, at_end=True) == 0


def test_shared_whole_pages_count_once_as_published():
    assert PUBLISHED.pages(1, is_shared=True, at_end=True) == PUBLISHED.pages(1, is_shared=False, at_end=True)
    assert 256 * PUBLISHED.pages(129, is_shared=True, at_end=False) == 65_280 + 129 * 512
    middle = (
        256
        * (PUBLISHED.pages(129, is_shared=True, at_end=False) + PUBLISHED.pages(129, is_shared=True, at_end=True))
        / 2
    )
    assert 0.06 < middle / 2_507_487 < 0.08


def _steps(pages, count=20):
    line = {"instance": "d0", "slots_used": 6, "pages_used": pages}
    return [line for _ in range(count)]


@pytest.mark.parametrize(("prefix", "pages"), [("kv_radix", 7 + 6 * 2), ("none", 6 * 9)])
def test_a_session_that_holds_what_the_formula_says_is_at_one(prefix, pages):
    config = {"cache": {"page_size": 64, "prefix": prefix, "slots_per_request": 1}, "speculation": {"method": "off"}}
    source = {"input_len": 512, "output_len": 32, "shared_ratio": 0.999}
    plan = {
        "client": {"workload": {"source": source}},
        "processes": [{"name": "d0", "role": "decode", "files": {"d0.json": config}}],
    }
    assert pages_of_formula(_steps(pages), plan) == pytest.approx(1)
    assert pages_of_formula(_steps(pages + 2), plan) > 1.03
    assert pages_of_formula(_steps(pages), {**plan, "processes": []}) is None
