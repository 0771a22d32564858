from __future__ import annotations

import re
from pathlib import Path

import pytest

import backhaul
from backhaul_bench.shares import _RULES, GROUPS, OTHER, WAITING, group_of, parse_stacks, shares

LOOP = ("<module> (run.py:3)", "BaseEventLoop._run_once (asyncio/base_events.py:1922)")
SENDING = (*LOOP, "BatchedSend._background_send (distributed/batched.py:110)")
WRITING = (*SENDING, "TCP.write (distributed/comm/tcp.py:280)")


@pytest.mark.parametrize(
    ("stack", "group"),
    [
        (LOOP, "event loop"),
        (SENDING, "batching"),
        (WRITING, "comm"),
        ((*WRITING, "to_frames (distributed/comm/utils.py:34)"), "serialization"),
        ((*WRITING, "Task.__getstate__ (dask/_task_spec.py:1)"), "serialization"),
        ((*WRITING, "dumps (distributed/protocol/core.py:9)", "f (enum.py:1)"), "serialization"),
        ((*WRITING, "IOStream.write_to_fd (tornado/iostream.py:1182)"), "comm"),
        ((*LOOP, "BackhaulComm.write (backhaul/dask/comm/comm.py:1)"), "comm"),
        ((*LOOP, "Server.handle_stream (distributed/core.py:800)"), "dispatch"),
        ((*LOOP, "SchedulerState._transition (distributed/scheduler.py:9)"), "state machine"),
        ((*LOOP, "Worker.execute (distributed/worker.py:2200)"), "executor"),
        ((*LOOP, "Worker.handle_stimulus (distributed/worker.py:1900)"), "state machine"),
        ((*LOOP, "order (dask/order.py:70)"), "task graphs"),
        ((*LOOP, "take (pandas/core/frame.py:70)"), "dataframes"),
        ((*LOOP, "EpollSelector.select (selectors.py:468)"), WAITING),
        ((*LOOP, "EpollSelector.select (selectors.py:468)", "epoll_wait (libc.so.6)"), WAITING),
        (("run (threading.py:9)", "_worker (concurrent/futures/thread.py:81)"), WAITING),
        (("run (threading.py:9)", "increment (backhaul_bench/jobs.py:30)"), "executor"),
        (("run (threading.py:9)", "make_left (benches/python/merge_job.py:30)"), "executor"),
        ((*LOOP, "fill (backhaul/dask/scheduler/window.py:1)"), "state machine"),
        ((*LOOP, "LiveCore.call (backhaul/dask/scheduler/core/live_core.py:1)"), "state machine"),
        (("run (threading.py:9)", "SharedInbox.wait (backhaul/dask/comm/inbox.py:268)"), WAITING),
        (("<module> (run.py:3)",), OTHER),
    ],
)
def test_a_stack_counts_for_its_innermost_function_with_a_group(
    stack: tuple[str, ...], group: str
) -> None:
    assert group_of(stack) == group


def test_shares_leave_waiting_out_and_add_up() -> None:
    lines = [";".join(SENDING) + " 1", ";".join(WRITING) + " 3"]
    lines.append(";".join((*LOOP, "Condition.wait (threading.py:331)")) + " 96")
    found = shares(parse_stacks("\n".join(lines)))
    assert found == {"comm": 0.75, "batching": 0.25}
    assert list(found) == [group for group in GROUPS if group in found]


def test_no_samples_have_no_shares() -> None:
    assert shares(parse_stacks("")) == {}


def test_a_thread_without_frames_counts_for_no_group() -> None:
    assert shares(parse_stacks(" 18\n" + ";".join(WRITING) + " 2")) == {"comm": 0.1, OTHER: 0.9}


def test_what_is_no_stack_is_refused() -> None:
    with pytest.raises(ValueError, match="not a folded stack"):
        parse_stacks("<svg>")


def test_every_file_of_ours_that_is_named_exists() -> None:
    folder = Path(backhaul.__file__).parent
    named = {
        (package, name)
        for _, pattern in _RULES
        if "backhaul/dask/(?:" in pattern.pattern
        for package, names in re.findall(r"(\w+)/\(\?:([\w|]+)\)", pattern.pattern)
        for name in names.split("|")
        if package != "dask"
    }
    assert len(named) > 5
    for package, name in sorted(named):
        assert (folder / "dask" / package / f"{name}.py").exists(), name
