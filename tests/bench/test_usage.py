from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from backhaul_bench.usage import process_cpu_seconds, take_snapshot, usage_between


def test_the_cpu_time_of_this_process_is_what_it_says_itself() -> None:
    before = time.process_time()
    read = process_cpu_seconds(os.getpid())
    assert before <= read <= time.process_time()


def test_work_and_waits_are_counted_for_the_process_that_did_them() -> None:
    code = "input(); sum(range(10**6)); b'1' * 10**7; print(flush=True); open(0).read()"
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        pids = [os.getpid(), child.pid]
        before = take_snapshot(pids)
        child.stdin.write(b"\n")
        child.stdin.flush()
        child.stdout.readline()
        used = usage_between(before, take_snapshot(pids), [child.pid])
        child.stdin.close()
    assert used.cpu_seconds > 0
    assert used.context_switches >= 1
    assert used.page_faults >= 1


def test_a_process_that_ended_is_named() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    with pytest.raises(ProcessLookupError, match=f"process {child.pid} ended"):
        take_snapshot([child.pid])
