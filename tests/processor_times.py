"""Names the tests that take most of the processors, at the end of a run of pytest.

A test counts with the processes that it has started and waited for. The set-up and the tear-down of
a file's tests count together, as one fixture may serve all of them: most of what the workers of a
cluster have used is known when the cluster ends.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest

__all__ = ["SHOWN", "ProcessorTimes"]

#: Tests and fixtures that are named
SHOWN: Final = 10
#: Tests that take less are not named
_SECONDS_MIN: Final = 0.5


def _used_seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


class ProcessorTimes:
    """Plugin of pytest that adds up the processor time of tests and of fixtures."""

    def __init__(self) -> None:
        self._seconds: defaultdict[str, float] = defaultdict(float)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Any:
        """Count what fixtures take before a test."""
        with self._counted(f"fixtures of {item.nodeid.partition('::')[0]}"):
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Any:
        """Count what a test takes."""
        with self._counted(item.nodeid):
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Any:
        """Count what fixtures take after a test."""
        with self._counted(f"fixtures of {item.nodeid.partition('::')[0]}"):
            return (yield)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the names, those that took most first."""
        costly = [cost for cost in self._seconds.items() if cost[1] >= _SECONDS_MIN]
        if costly:
            terminalreporter.section("most processor time")
        for name, seconds in sorted(costly, key=lambda cost: cost[1], reverse=True)[:SHOWN]:
            terminalreporter.write_line(f"CPU {seconds:.1f} s: {name}")

    @contextmanager
    def _counted(self, name: str) -> Iterator[None]:
        before = _used_seconds()
        try:
            yield
        finally:
            self._seconds[name] += _used_seconds() - before
