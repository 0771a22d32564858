"""The policy of the in-flight window, on numbers alone."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backhaul._native import WindowPolicy, WorkerLoad
from backhaul.dask.config.settings import WindowLimits

LIMITS = WindowLimits(
    seconds=20e-3, tasks_per_thread=64, memory_share=0.01, memory_budget_bytes=10**9
)
AMPLE = 10**9
#: Time of a worker for one task besides running it, in seconds
TURNAROUND_S = 0.3e-3

seconds = st.floats(0, 1e4)
sizes = st.floats(0, 1e15)
counts = st.integers(0, 10**6)
threads = st.integers(1, 256)


def policy_of(
    duration_s: float, nbytes: float, *, limits: WindowLimits = LIMITS, confirmed: int = AMPLE
) -> WindowPolicy:
    policy = WindowPolicy(**dataclasses.asdict(limits), saturation=1.1)
    policy.replace([("x", duration_s, nbytes)], [("group", confirmed)])
    return policy


def load_of(tasks: int, *, threads: int = 1, **memory: Any) -> WorkerLoad:
    memory = {"memory_limit": 0, "used_bytes": 0, **memory}
    return WorkerLoad(threads=threads, tasks={"x": tasks} if tasks else {}, **memory)


def room(
    duration_s: float,
    nbytes: float,
    tasks: int = 0,
    *,
    threads: int = 1,
    queued: int = AMPLE,
    threads_all: int = 8,
    **changed: Any,
) -> int:
    policy = policy_of(duration_s, nbytes, **changed)
    load = load_of(tasks, threads=threads)
    return policy.room("group", "x", load, duration_s=0, queued=queued, threads_all=threads_all)


def excess(policy: WindowPolicy, load: WorkerLoad) -> int:
    (tasks,) = policy.excess("x", [load])
    return tasks


def floor_tasks(threads: int) -> int:
    """Return how few tasks in flight a worker is filled at that has been sent nothing."""
    policy = policy_of(0, 0)
    policy.note_filled("worker", 0, threads)
    return max(tasks for tasks in range(2 * threads + 3) if policy.is_low("worker", tasks))


@pytest.mark.parametrize(("threads", "tasks"), [(0, 1), (1, 2), (2, 3), (4, 5), (10, 11)])
def test_the_floor_is_upstreams_limit(threads: int, tasks: int) -> None:
    assert floor_tasks(threads) == tasks


def test_a_worker_is_filled_again_once_half_of_its_tasks_have_ended() -> None:
    policy = policy_of(0, 0)
    assert policy.is_low("worker", AMPLE)
    policy.note_filled("worker", 21, threads=1)
    assert not policy.is_low("worker", 11)
    assert policy.is_low("worker", 10)


def test_tasks_of_a_millisecond_fill_twenty_milliseconds() -> None:
    assert room(1e-3, 0) == 20


def test_the_time_is_for_each_thread() -> None:
    assert room(4e-3, 0, threads=4) == 20


def test_the_shortest_tasks_count_with_their_turnaround() -> None:
    assert room(0, 0) == room(TURNAROUND_S, 0) == 64
    tasks = round(LIMITS.seconds / TURNAROUND_S)
    # Threads do not help: the event loop of the worker hands out one task at a time.
    assert room(0, 0, threads=16, threads_all=16) == pytest.approx(tasks, abs=1)


def test_tasks_in_flight_leave_less_room() -> None:
    assert room(1e-3, 0, 15) == 5
    assert room(1e-3, 0, 25) == 0


def test_long_tasks_leave_no_room_beyond_the_floor() -> None:
    assert room(1.0, 0, 2) == 0


def test_heavy_tasks_leave_no_room_beyond_the_floor() -> None:
    assert room(1e-3, 1e9, 2) == 0
    # The budget holds seven of these, which is less than four times the floor.
    assert room(1e-3, 1.3e8, 2) == 0
    assert room(1e-3, 1.2e8, 2) == 6


def test_outputs_stay_within_the_budget() -> None:
    assert room(1e-3, 1e8) == 10
    assert room(1e-3, 1e8, 9) == 1


def test_an_unconfirmed_guess_leaves_no_room_and_doubles_from_there() -> None:
    assert room(0, 0, 2, confirmed=0, threads_all=1) == 0
    assert room(0, 0, 2, confirmed=2, threads_all=1) == 2
    assert room(0, 0, 2, confirmed=4, threads_all=1) == 4


def test_confirmations_are_shared_between_the_workers() -> None:
    assert room(0, 0, 2, confirmed=16, threads_all=8) == 2


def test_the_end_of_the_queue_is_shared_out() -> None:
    assert room(0, 0, queued=64, threads_all=8) == 4
    assert room(0, 0, queued=1, threads_all=1) == 0


def test_a_kind_of_task_that_never_ended_or_that_upstream_has_forgotten_leaves_no_room() -> None:
    policy = policy_of(0, 0)
    front: dict[str, Any] = {"duration_s": 0, "queued": AMPLE, "threads_all": 8}
    assert policy.room("group", "x", load_of(0), **front)
    assert not policy.room("group", "x", load_of(0), **{**front, "duration_s": -1})
    assert not policy.room("another", "x", load_of(0), **front)
    assert not policy.room("group", "y", load_of(0), **front)
    other = WorkerLoad(threads=1, memory_limit=0, used_bytes=0, tasks={"x": 1, "y": 1})
    assert not policy.room("group", "x", other, **front)


def test_the_budget_is_a_share_of_free_memory() -> None:
    policy = policy_of(0, 10**6)
    front: dict[str, Any] = {"duration_s": 0, "queued": AMPLE, "threads_all": 8}

    def tasks(memory_limit: int, used_bytes: int) -> int:
        load = load_of(0, threads=8, memory_limit=memory_limit, used_bytes=used_bytes)
        return policy.room("group", "x", load, **front)

    assert tasks(5 * 10**9, 0) == 50
    assert tasks(10**10, 5 * 10**9) == 50
    assert tasks(10**9, 2 * 10**9) == 0


def test_longer_and_heavier_is_believed_sooner_than_shorter_and_lighter() -> None:
    policy = policy_of(1.0, 1000)
    policy.observe("group", "x", 2.0, 2000)
    assert policy.learned() == ([("x", 1.5, 2000)], [("group", AMPLE + 1)])
    policy.observe("group", "x", 0.7, 1000)
    ((_, seconds, nbytes),), _ = policy.learned()
    assert seconds == pytest.approx(1.4)
    assert nbytes == pytest.approx(1937.5)


def test_a_guess_that_was_wrong_by_much_is_reported_until_acted_on() -> None:
    policy = policy_of(1e-3, 1000)
    assert not policy.observe("group", "x", 1e-3, 1999)
    assert policy.observe("group", "x", 1e-3, 2001)
    assert policy.observe("group", "x", 1e-3, 2001)
    policy.excess("x", [])
    assert not policy.observe("group", "x", 1e-3, 2001)
    assert policy.observe("group", "x", 1.0, 0)


def test_a_few_long_tasks_are_no_surprise_to_a_patient_caller() -> None:
    policy = policy_of(1e-3, 0)
    told = [policy.observe("group", "x", 0.1, 0, patiently=True) for _ in range(4)]
    assert told == [False, False, False, True]
    assert policy.observe("group", "x", 0.1, 1, patiently=True)
    policy = policy_of(1e-3, 0)
    assert policy.observe("group", "x", 1.0, 0, patiently=True)


def test_noise_below_the_turnaround_is_no_surprise() -> None:
    assert not policy_of(1e-6, 0).observe("group", "x", 1e-3, 0)


def test_too_much_in_hand_is_taken_back_down_to_the_limit() -> None:
    assert excess(policy_of(10e-3, 0), load_of(60)) == 58
    assert excess(policy_of(0, 1e8), load_of(60)) == 50


def test_a_little_too_much_in_hand_is_left() -> None:
    assert excess(policy_of(0, 1e8), load_of(15)) == 0


def test_a_kind_of_task_of_which_a_worker_has_few_is_not_taken_back() -> None:
    policy = policy_of(10e-3, 0)
    policy.replace([("x", 10e-3, 0), ("y", 10e-3, 0)], [])
    load = WorkerLoad(threads=1, memory_limit=0, used_bytes=0, tasks={"x": 2, "y": 58})
    assert policy.excess("x", [load]) == [0]
    assert policy.excess("y", [load]) == [58]


@given(seconds, sizes, counts, threads, st.integers(0, 10**15), counts, counts, threads)
def test_room_keeps_every_limit(
    duration_s: float,
    nbytes: float,
    tasks: int,
    threads: int,
    budget_bytes: int,
    confirmed: int,
    queued: int,
    threads_more: int,
) -> None:
    limits = dataclasses.replace(LIMITS, memory_budget_bytes=budget_bytes)
    policy = policy_of(duration_s, nbytes, limits=limits, confirmed=confirmed)
    threads_all = threads + threads_more
    front: dict[str, Any] = {"duration_s": 0, "queued": queued, "threads_all": threads_all}
    number = policy.room("group", "x", load_of(tasks, threads=threads), **front)
    assert number >= 0
    if number:
        tasks += number
        turn_s = max(duration_s / threads, TURNAROUND_S)
        assert tasks <= limits.tasks_per_thread * threads
        assert tasks * turn_s <= limits.seconds * (1 + 1e-9)
        assert tasks * nbytes <= budget_bytes * (1 + 1e-9)
        assert tasks <= floor_tasks(threads) + confirmed * threads / threads_all
        assert number <= queued / 2
        # A number that was just found to fit is not taken back.
        assert not excess(policy, load_of(tasks, threads=threads))


@given(seconds, sizes, counts, threads, st.integers(0, 10**15))
def test_tasks_that_are_taken_back_leave_the_floor(
    duration_s: float, nbytes: float, tasks: int, threads: int, budget_bytes: int
) -> None:
    limits = dataclasses.replace(LIMITS, memory_budget_bytes=budget_bytes)
    number = excess(policy_of(duration_s, nbytes, limits=limits), load_of(tasks, threads=threads))
    assert number >= 0
    if number:
        assert tasks - number >= floor_tasks(threads)
        assert 2 * number >= tasks


@given(st.lists(st.tuples(seconds, sizes), min_size=1))
def test_an_expectation_lies_between_the_least_and_the_most_seen(
    samples: list[tuple[float, float]],
) -> None:
    policy = WindowPolicy(**dataclasses.asdict(LIMITS), saturation=1.1)
    for sample in samples:
        policy.observe("group", "x", *sample)
    ((_, expected_s, expected_bytes),), _ = policy.learned()
    durations, weights = zip(*samples, strict=True)
    assert min(durations) <= expected_s * (1 + 1e-9)
    assert expected_s <= max(durations) * (1 + 1e-9)
    assert min(weights) <= expected_bytes * (1 + 1e-9)
    assert expected_bytes <= max(weights) * (1 + 1e-9)


@pytest.mark.parametrize(
    ("field", "value"), [("seconds", 1.0), ("tasks_per_thread", 1000), ("memory_share", 1.0)]
)
def test_more_of_any_limit_never_means_less_room(field: str, value: Any) -> None:
    limits = dataclasses.replace(LIMITS, **{field: value})
    assert room(1e-3, 1e6, limits=limits) >= room(1e-3, 1e6)
