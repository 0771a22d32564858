"""Which part of Dask a process spent its time in, from the stacks of a sampling profiler.

Each stack counts for the innermost of its frames that a rule knows: a ``dumps`` that a comm calls
is serialization, and so is what the standard library does for it. So the shares add up to 1, and
each says what would be saved if that part took no time. Threads that wait are left out: the
profiler cannot always tell, so the function they wait in does.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping

__all__ = ["GROUPS", "OTHER", "WAITING", "group_of", "parse_stacks", "shares"]

#: Name of the share of functions without a rule
OTHER = "other"
#: A thread with nothing to do. The system call that waits counts here too
WAITING = "waiting"

#: Every group, in the order of reports
GROUPS = (
    "serialization",
    "comm",
    "batching",
    "dispatch",
    "event loop",
    "state machine",
    "task graphs",
    "executor",
    "shuffle",
    "dataframes",
    "monitoring",
    OTHER,
)

# Group and pattern of "function (file:line)"; the first match counts. Files are as py-spy shortens
# them, from the package on. Read from the modules of Dask 2026.7 and 2026.8.
_RULES = [
    (group, re.compile(pattern))
    for group, pattern in [
        ("monitoring", r"\((?:distributed/(?:profile|system_monitor)\.py|psutil/)"),
        # How objects are pickled stands in the files of their classes.
        (
            "serialization",
            r"\b(?:__reduce(?:_ex)?__|__getstate__|__setstate__|dumps\w*|loads) \(",
        ),
        (
            "serialization",
            r"\((?:distributed/(?:protocol/|comm/utils\.py)|cloudpickle/|pickle\.py|copyreg\.py"
            r"|_pickle|msgpack/|_cmsgpack)",
        ),
        (
            "executor",
            # The last two are ours, in the place of Dask's.
            r"\b(?:execute|_execute|_maybe_deserialize_task|_prepare_args\w*|apply_function\w*"
            r"|_run|_call)"
            r" \(distributed/worker\.py",
        ),
        (
            "executor",
            r"\((?:distributed/(?:threadpoolexecutor|_concurrent_futures_thread)\.py|concurrent/"
            r"|dask/_task_spec\.py|backhaul_bench/|benches/python/)",
        ),
        (
            "executor",
            r"\(backhaul/dask/(?:worker/(?:execution|early_reader|work_queue)"
            r"|resource_pools/(?:lease_context|overflow_pool)"
            r")\.py",
        ),
        (
            "monitoring",
            r"\(backhaul/dask/(?:worker/(?:metrics)"
            r"|observe/(?:account|ledger|heartbeat)"
            r")\.py",
        ),
        (
            "serialization",
            r"\(backhaul/dask/(?:serialize/(?:codec|task_codec|pickled_task|inline_values)"
            r")\.py",
        ),
        (
            "batching",
            r"\(backhaul/dask/(?:comm/(?:batched_stream|threaded_stream)"
            r")\.py",
        ),
        ("batching", r"\(distributed/batched\.py"),
        (
            "dispatch",
            r"\(backhaul/dask/(?:worker/(?:event_stream)"
            r"|client/(?:outgoing_queue|reader_thread|send)"
            r")\.py",
        ),
        (
            "state machine",
            r"\(backhaul/dask/(?:scheduler/(?:window|window_recall|submissions|inline_results)"
            r"|worker/(?:finished_message|early_execution|local_queue|instructions|inline_results)"
            r"|worker/(?:event_makers|state_checks)"
            r"|client/(?:state_event|result_cache|blocking_gather|blocking_wait|thread_wait)"
            r"|comm/(?:already_sent)"
            r"|resource_pools/(?:scheduler_slots|worker_slots)"
            r")\.py",
        ),
        ("state machine", r"\(backhaul/dask/scheduler/core/"),
        (
            "task graphs",
            r"\(backhaul/dask/(?:scheduler/(?:order|fairness)"
            r"|client/(?:map|submit|keys)"
            r")\.py",
        ),
        (
            "comm",
            r"\((?:distributed/comm/|tornado/(?:iostream|tcp\w*|netutil)\.py|backhaul/|_native\."
            r"|ssl\.py|socket\.py)",
        ),
        ("dispatch", r"\(distributed/(?:core|counter|_async_taskgroup)\.py"),
        ("shuffle", r"\(distributed/shuffle/"),
        ("event loop", r"\(distributed/(?:utils|compatibility|utils_comm)\.py"),
        ("state machine", r"\(distributed/"),
        ("dataframes", r"\((?:pandas/|pyarrow/|numpy/|dask/dataframe/)"),
        ("task graphs", r"\((?:dask/|tlz/|toolz/|cytoolz/)"),
        ("event loop", r"\((?:asyncio/|uvloop/|selectors\.py|tornado/)"),
    ]
]

_PYTHON_FRAME = re.compile(r"\.py:\d+\)$|\(<")
_WAITS = re.compile(
    r"\bselect \(selectors\.py|\b(?:wait|_wait_for_tstate_lock) \(threading\.py"
    # Queues written in C have no frame of their own
    r"|\b_worker \((?:concurrent/futures/thread|distributed/threadpoolexecutor)\.py"
    # Natively, for what arrives
    r"|\bwait \(backhaul/dask/comm/inbox\.py"
    # The processes of a benchmark: waiting for orders, and for the end
    r"|\breceive \(backhaul_bench/control\.py|<lambda> \(<string>"
)


def parse_stacks(text: str) -> Counter[tuple[str, ...]]:
    """Read folded stacks.

    Parameters
    ----------
    text : str
        Lines of ``frame;frame;… count``, outermost frame first, as ``py-spy -f raw`` writes them.

    Returns
    -------
    Counter of tuple of str
        How often each stack was found.

    Raises
    ------
    ValueError
        If a line is no such stack.
    """
    found: Counter[tuple[str, ...]] = Counter()
    for line in text.splitlines():
        stack, gap, count = line.rpartition(" ")
        if not gap or not count.isdigit():
            raise ValueError(f"{line[:120]!r} is not a folded stack")
        # A thread that is about to enter its first frame, or has left its last, has none
        found[tuple(stack.split(";")) if stack else ()] += int(count)
    return found


def group_of(stack: Iterable[str]) -> str:
    """Say which part of Dask a stack counts for.

    Parameters
    ----------
    stack : iterable of str
        Frames, the outermost first.

    Returns
    -------
    str
        One of :data:`GROUPS`, or :data:`WAITING`.
    """
    frames = tuple(stack)
    innermost = next((each for each in reversed(frames) if _PYTHON_FRAME.search(each)), "")
    if _WAITS.search(innermost):
        return WAITING
    for frame in reversed(frames):
        for group, pattern in _RULES:
            if pattern.search(frame):
                return group
    return OTHER


def shares(stacks: Mapping[tuple[str, ...], int]) -> dict[str, float]:
    """Share the samples out among the groups.

    Parameters
    ----------
    stacks : mapping of tuple of str to int
        How often each stack was found.

    Returns
    -------
    dict of str to float
        For each group that occurs its share of those that do not wait, from 0 to 1, in the order
        of :data:`GROUPS`. Empty if there are none.
    """
    found: Counter[str] = Counter()
    for stack, count in stacks.items():
        found[group_of(stack)] += count
    del found[WAITING]
    return {group: found[group] / found.total() for group in GROUPS if found[group]}
