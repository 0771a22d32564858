"""Differential suite: a program observes over ``backhaul://`` what it observes over ``tcp://``."""

from __future__ import annotations

import difflib
import json
import warnings
from typing import Any

import pytest

from tests.dask.like_tcp.conftest import Side
from tests.dask.like_tcp.runner import load_programs

pytestmark = pytest.mark.once(reason="the programs are of users, and take three minutes")


def lines(observed: dict[str, Any]) -> list[str]:
    return json.dumps(
        {name: value for name, value in observed.items() if name != "seconds"}, indent=1
    ).splitlines()


@pytest.mark.parametrize("name", load_programs())
def test_program_observes_the_same_over_both_protocols(name: str, sides: tuple[Side, Side]) -> None:
    expected, found = observed(name, sides)
    if "error" in expected or lines(found) != lines(expected):
        # Once more in processes of their own: a program may meet what an earlier one left behind.
        warnings.warn(f"{name} is run again:\n{difference(expected, found)}", stacklevel=1)
        for side in sides:
            side.close()
        expected, found = observed(name, sides)
    assert "error" not in expected, expected["error"]
    assert lines(found) == lines(expected)


def difference(expected: dict[str, Any], found: dict[str, Any]) -> str:
    """Return the lines that differ, or why there is nothing to compare with."""
    if "error" in expected:
        return str(expected["error"])
    return "\n".join(difflib.unified_diff(lines(expected), lines(found), "tcp", "other", "", "", 0))


def observed(name: str, sides: tuple[Side, Side]) -> tuple[dict[str, Any], dict[str, Any]]:
    for side in sides:
        side.begin(name)
    return sides[0].result(), sides[1].result()
