"""Pages of a headless Chromium for tests, as a plugin of pytest."""

import pytest

from support.browser import open_browser


@pytest.fixture(name="new_page", scope="module")
def new_page_fixture():
    with open_browser() as new_page:
        yield new_page


@pytest.fixture(name="page")
def page_fixture(new_page):
    page = new_page()
    yield page
    assert page.problems == []
    page.close()
