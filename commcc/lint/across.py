"""Rules that look at several graphs together, once each of them has been checked by itself.

Such a rule is a :class:`commcc.lint.types.Rule` with a ``keep``: what that makes of the
:class:`commcc.lint.types.Subject` of every graph is all that the run holds on to, and ``check`` gets a tuple of it,
in the order of the command line, and its options. It is not called for fewer than two graphs, and what it yields
nothing for is fine. Overrides by path do not reach it.
"""

from __future__ import annotations

from commcc.lint.rules.ranks import RANKS

ACROSS = (*RANKS,)
