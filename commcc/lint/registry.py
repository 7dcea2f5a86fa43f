"""All rules, in the order in which they are run and listed. An explicit table; nothing registers itself."""

from __future__ import annotations

from commcc.lint.rules.amounts import AMOUNTS
from commcc.lint.rules.legality import LEGALITY
from commcc.lint.rules.ranks import RANKS
from commcc.lint.rules.regression import REGRESSION
from commcc.lint.rules.simulated import SIMULATED
from commcc.lint.rules.waste import WASTE

RULES = (*LEGALITY, *WASTE, *AMOUNTS, *SIMULATED, *REGRESSION, *RANKS)
BY_ID = {rule.id: rule for rule in RULES}


def rule_ids() -> tuple[str, ...]:
    """Ids of all rules; they do not change from one version to the next."""
    return tuple(BY_ID)
