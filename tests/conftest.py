"""Fixtures of the tests that open pages in a browser, and what all tests have around them."""

from __future__ import annotations

import os

import pytest


def pytest_configure():
    """Reports are as wide as they need to be, in processes that a worker starts too: readline sets these in workers."""
    for name in ("COLUMNS", "LINES"):
        os.environ.pop(name, None)


@pytest.fixture(scope="module")
def browser():
    from tests.browser import Browser

    with Browser() as running:
        yield running


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    from tests.page_driver import make_files

    return make_files(tmp_path_factory.mktemp("pages"))
