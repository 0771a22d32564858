"""A plugin of pytest that says of a test that fails how much of the processor it had.

A test that ran out of time on a busy machine either waited for something that did not come, or for
a processor: its main thread's time in the run queue is what tells (``/proc/…/schedstat``, Linux).
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Generator

import pytest

_STARTED = pytest.StashKey[tuple[float, float, float]]()


def _times() -> tuple[float, float, float]:
    """Give seconds: the clock, the process's on processors, and the main thread's in run queues."""
    thread = threading.main_thread().native_id
    with open(f"/proc/self/task/{thread}/schedstat") as file:
        waited_ns = int(file.read().split()[1])
    return time.monotonic(), time.process_time(), waited_ns / 1e9


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Note when a test begins."""
    item.stash[_STARTED] = _times()
    yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add to the report of a failure what the test had."""
    report = yield
    started = item.stash.get(_STARTED, None)
    if call.when == "call" and report.failed and started is not None:
        took, on_processor, waited = (
            now - then for now, then in zip(_times(), started, strict=True)
        )
        load = os.getloadavg()[0]
        text = (
            f"{took:.2f} s, {on_processor:.2f} of them on a processor, its main thread "
            f"{waited:.2f} in the run queue, at a load of {load:.1f}"
        )
        report.sections.append(("processor time", text))
    return report
