"""Rules that look at several graphs together, once each of them has been checked by itself.

Such a rule is a :class:`commcc.lint.types.Rule` with ``across=True``: its ``check`` gets a tuple of the
:class:`commcc.lint.types.Subject` of every graph that was read, in the order of the command line, and its
options; its findings name nodes of any of them (``subject.spot(node)`` says which graph). It is not called for
fewer than two graphs, and what it yields nothing for is fine. Overrides by path do not reach it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from commcc.lint.types import Rule

ACROSS: tuple[Rule, ...] = ()
