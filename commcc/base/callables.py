"""Packages that are functions too, where both are to be called ``commcc.NAME``::

also_a_function("commcc.verify", "commcc.api")        # in commcc/verify/__init__.py: commcc.verify(before, after)
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any


def also_a_function(package: str, home: str) -> None:
    """Let a call of ``package`` be one of the function of its last name in ``home``, imported when it is called."""

    class Callable(ModuleType):
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return getattr(importlib.import_module(home), package.rpartition(".")[2])(*args, **kwargs)

    sys.modules[package].__class__ = Callable
