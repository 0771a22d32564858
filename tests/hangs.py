"""Counts a test that hangs as one failure among others.

Nothing ends such a test but the end of its process, after the time limit of pytest-timeout. Before
that, this plugin prints the test's name, the stacks of all threads, and the summary of
all tests until then. The option ``--after`` runs the tests that come after the one that hung.
"""

from __future__ import annotations

import io
import os
import threading
from typing import Any, Final

import psutil
import pytest
import pytest_timeout

__all__ = ["HANGS", "Hangs", "add_option"]

#: Begins the line that names a test that hangs
HANGS: Final = "hangs: "


def add_option(parser: pytest.Parser) -> None:
    """Add the option ``--after``."""
    parser.addoption("--after", metavar="TEST", help="run only the tests that come after this one")


class Hangs:
    """Plugin of pytest that reports a test that hangs, and ends the process."""

    def __init__(self) -> None:
        self._timers: dict[pytest.Item, threading.Timer] = {}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        """Deselect the test of ``--after``, and those before it."""
        after = config.getoption("after", None)
        if after is None:
            return
        names = [item.nodeid for item in items]
        if after not in names:
            raise pytest.UsageError(f"--after: no test {after}")
        past = names.index(after) + 1
        config.hook.pytest_deselected(items=items[:past])
        del items[:past]

    @pytest.hookimpl(tryfirst=True)
    def pytest_timeout_set_timer(self, item: pytest.Item, settings: Any) -> bool | None:
        """Start a timer for a test, in a thread."""
        if settings.method != "thread":
            return None
        timer = threading.Timer(settings.timeout, self._end, (item, settings.timeout))
        timer.name = f"time limit of {item.nodeid}"
        timer.start()
        self._timers[item] = timer
        return True

    @pytest.hookimpl(tryfirst=True)
    def pytest_timeout_cancel_timer(self, item: pytest.Item) -> bool | None:
        """Cancel the timer of a test."""
        timer = self._timers.pop(item, None)
        if timer is None:
            return None
        timer.cancel()
        timer.join()
        return True

    def _end(self, item: pytest.Item, limit_s: float) -> None:
        if pytest_timeout.is_debugging():
            return
        try:
            _report(item, limit_s)
        finally:
            # Or they would keep the output open for those who read it.
            for process in psutil.Process().children(recursive=True):
                process.kill()
            os._exit(pytest.ExitCode.TESTS_FAILED)


def _report(item: pytest.Item, limit_s: float) -> None:
    config = item.config
    capture: Any = config.pluginmanager.getplugin("capturemanager")
    capture.suspend_global_capture(in_=True)
    printed = "".join(capture.read_global_capture())
    reporter: Any = config.pluginmanager.getplugin("terminalreporter")
    reporter.ensure_newline()
    reporter.write_line(f"{HANGS}{item.nodeid}", flush=True)
    stacks = io.StringIO()
    pytest_timeout.dump_stacks(_Writer(stacks))
    report = pytest.TestReport(
        nodeid=item.nodeid,
        location=item.location,
        keywords={},
        outcome="failed",
        longrepr=f"E   Hangs: no end after {limit_s:.0f} s\n\n{stacks.getvalue()}",
        when="call",
        sections=[("Captured output", printed)] if printed else [],
    )
    reporter.stats.setdefault("failed", []).append(report)
    status = pytest.ExitCode.TESTS_FAILED
    config.hook.pytest_terminal_summary(terminalreporter=reporter, exitstatus=status, config=config)
    reporter.summary_stats()
    reporter.flush()


class _Writer:
    """Writes what pytest-timeout prints of stacks into a text."""

    def __init__(self, text: io.StringIO) -> None:
        self.write = text.write

    def sep(self, character: str, *, title: str) -> None:
        self.write(f"{character * 3} {title}\n")
