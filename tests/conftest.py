"""What holds for all tests."""

from __future__ import annotations

import gc
import signal

import pytest


def pytest_configure() -> None:
    """Heed SIGINT, which a shell has ignored by what it starts in the background.

    Tests send it to programs that they start, and these inherit that.
    """
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="module", autouse=True)
def what_was_before_is_kept() -> None:
    """Keep what is there when a module's tests begin out of all garbage collections in it.

    Many tests make some: Dask's helpers and `backhaul.ucp.reset` do, for each. Those of a late
    module would look through all that earlier ones have imported, 0.2 s each with Bokeh and pandas.
    """
    gc.collect()
    gc.freeze()
