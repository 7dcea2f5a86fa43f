"""What all tests have around them: how many of them run, the browser, the pages it opens."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

from tests import effort


def pytest_addoption(parser):
    parser.addoption("--full", action="store_true", help="all tests, with all of their examples")
    parser.addoption("--rest", action="store_true", help="with --full: only what runs in part without --full")
    parser.addoption("--random", action="store_true", help="property tests draw other examples in each run")


def pytest_configure(config):
    """Reports are as wide as they need to be, in processes that a worker starts too: readline sets these in workers."""
    for name in ("COLUMNS", "LINES"):
        os.environ.pop(name, None)
    if config.getoption("--full"):
        os.environ[effort.VARIABLE] = "1"
        effort.FULL = True
    # What property tests take for settings that they do not give. A loaded machine is no reason to fail, nor is
    # luck: the same tree tries the same examples wherever it runs, and --random looks for new ones.
    same = not config.getoption("--random")
    settings.register_profile(
        "commcc",
        max_examples=effort.examples(100),
        deadline=None,
        derandomize=same,
        database=None if same else settings.default.database,
    )
    settings.load_profile("commcc")


def pytest_collection_modifyitems(config, items):
    """Tests marked ``full`` run with --full only, of those marked ``sampled(N)`` N cases run without it.

    --rest leaves out what ``make test`` runs whole already.
    """
    if not config.getoption("--full"):
        sampled = _sampled(items)
        _keep(config, items, lambda item: item.get_closest_marker("full") is None and sampled.get(item, True))
    elif config.getoption("--rest"):
        _keep(config, items, _has_more)


def _has_more(item) -> bool:
    """Whether a test tries more with --full: marked so, or a property test of hypothesis."""
    marked = any(item.get_closest_marker(name) is not None for name in ("full", "sampled", "scaled"))
    return marked or getattr(getattr(item, "obj", None), "is_hypothesis_test", False)


def _sampled(items) -> dict:
    """For each case of a sampled test whether it runs: N of them, as far apart as they can be."""
    cases = {}
    for item in items:
        mark = item.get_closest_marker("sampled")
        if mark is not None:
            cases.setdefault((item.path, item.originalname, mark.args[0]), []).append(item)
    chosen = {}
    for (_, _, number), of_test in cases.items():
        places = {i * len(of_test) // number for i in range(number)}
        chosen |= {item: place in places for place, item in enumerate(of_test)}
    return chosen


def _keep(config, items, wanted):
    left_out = [item for item in items if not wanted(item)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if wanted(item)]


@pytest.fixture(scope="session")
def browser():
    from tests.browser import Browser

    with Browser() as running:
        yield running


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    from tests.page_driver import make_files

    return make_files(tmp_path_factory.mktemp("pages"))


@pytest.fixture
def store(monkeypatch):
    """This process as rank 1 of two of a training job, whose store the test fills for other ranks."""
    import torch.distributed as dist

    from commcc.live import agreement

    made = dist.HashStore()
    for other in (0, 2, 3):
        made.set(f"commcc/agreement/begin/{other}", "0")
    facts = {"is_initialized": True, "get_backend": "gloo", "get_rank": 1, "get_world_size": 2}
    for name, value in facts.items():
        monkeypatch.setattr(dist, name, lambda value=value: value)
    monkeypatch.setattr(dist.distributed_c10d, "_get_default_store", lambda: made)
    monkeypatch.setattr(agreement, "_LOG", agreement._Log())
    monkeypatch.setattr(agreement, "_CALLS", iter(range(9)))
    return made
