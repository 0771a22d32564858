"""A plugin of pytest that gives upstream's tests more time, for a machine that is busy.

``gen_cluster`` ends a test after 30 seconds, in which it also starts its workers. With this plugin
that is ``BACKHAUL_TEST_TIMEOUT_S``, where a test names no time of its own.
"""

from __future__ import annotations

import os

from distributed import utils_test

_SECONDS = float(os.environ["BACKHAUL_TEST_TIMEOUT_S"])

utils_test.gen_cluster.__defaults__ = tuple(
    _SECONDS if value == utils_test._TEST_TIMEOUT and not isinstance(value, bool) else value
    for value in utils_test.gen_cluster.__defaults__ or ()
)
