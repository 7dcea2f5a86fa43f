"""Every text case prints exactly what its file says."""

from __future__ import annotations

import pytest

from tests.case_files import Case, actual, all_cases


@pytest.mark.parametrize("case", all_cases(), ids=lambda case: f"{case.file}:{case.name}")
def test_case(case: Case) -> None:
    assert case.out is not None, "run 'make golden' and read what it wrote"
    assert actual(case) == case.out


def test_names_are_unique() -> None:
    names = [(case.file, case.name) for case in all_cases()]
    assert len(names) == len(set(names))
