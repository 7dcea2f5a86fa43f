"""Fixtures of the tests that open pages in a browser."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module")
def browser():
    from tests.browser import Browser

    with Browser() as running:
        yield running


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    from tests.page_driver import make_files

    return make_files(tmp_path_factory.mktemp("pages"))
