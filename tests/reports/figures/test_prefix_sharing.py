"""The formula of pages in use."""

from reports.figures.prefix_sharing import PageLoad

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
