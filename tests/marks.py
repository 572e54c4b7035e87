"""Which cases of a test CI has the time for."""

import pytest


def first(number, cases):
    """All cases for `parametrize`; those after the first few are marked thorough."""
    return [*cases[:number], *map(thorough, cases[number:])]


def thorough(case):
    """A case for releases only: a value, a tuple of values or a pytest.param."""
    if hasattr(case, "marks"):
        return pytest.param(*case.values, id=case.id, marks=[*case.marks, pytest.mark.thorough])
    return pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.thorough)
