"""The policy of what a worker may have in in_flight, on numbers alone."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backhaul.dask.config.settings import WindowLimits
from backhaul.dask.scheduler.saturation import (
    TURNAROUND_S,
    Expectation,
    InFlight,
    excess_tasks,
    floor_tasks,
    room_tasks,
)

LIMITS = WindowLimits(
    seconds=20e-3, tasks_per_thread=64, memory_share=0.01, memory_budget_bytes=64 * 2**20
)
AMPLE = 10**9
#: Neither the ramp nor the end of the queue holds anything back.
STEADY: dict[str, int] = {"confirmed": AMPLE, "queued": AMPLE, "threads_all": 8}

seconds = st.floats(0, 1e4)
sizes = st.floats(0, 1e15)
counts = st.integers(0, 10**6)
threads = st.integers(1, 256)


def hand_of(
    tasks: int, expectation: Expectation, *, threads: int = 1, budget_bytes: float = 1e9
) -> InFlight:
    in_flight = InFlight(threads=threads, budget_bytes=budget_bytes)
    in_flight.add(tasks, expectation)
    return in_flight


def room(expectation: Expectation, tasks: int = 0, *, threads: int = 1, **changed: Any) -> int:
    in_flight = hand_of(tasks, expectation, threads=threads)
    floor = floor_tasks(threads, 1.1)
    return room_tasks(LIMITS, in_flight, expectation, floor_tasks=floor, **{**STEADY, **changed})


@pytest.mark.parametrize(("threads", "tasks"), [(0, 1), (1, 2), (2, 3), (4, 5), (10, 11)])
def test_the_floor_is_upstreams_limit(threads: int, tasks: int) -> None:
    assert floor_tasks(threads, 1.1) == tasks


def test_tasks_of_a_millisecond_fill_twenty_milliseconds() -> None:
    assert room(Expectation(1e-3, 0)) == 20


def test_the_time_is_for_each_thread() -> None:
    assert room(Expectation(4e-3, 0), threads=4) == 20


def test_the_shortest_tasks_count_with_their_turnaround() -> None:
    assert room(Expectation(0, 0)) == room(Expectation(TURNAROUND_S, 0)) == 64
    tasks = round(LIMITS.seconds / TURNAROUND_S)
    # Threads do not help: the event loop of the worker hands out one task at a time.
    assert room(Expectation(0, 0), threads=16) == pytest.approx(tasks, abs=1)


def test_tasks_in_flight_leave_less_room() -> None:
    assert room(Expectation(1e-3, 0), 15) == 5
    assert room(Expectation(1e-3, 0), 25) == 0


def test_long_tasks_leave_no_room_beyond_the_floor() -> None:
    assert room(Expectation(1.0, 0), 2) == 0


def test_heavy_tasks_leave_no_room_beyond_the_floor() -> None:
    assert room(Expectation(1e-3, 1e9), 2) == 0
    # The budget holds seven of these, which is less than four times the floor.
    assert room(Expectation(1e-3, 1.3e8), 2) == 0
    assert room(Expectation(1e-3, 1.2e8), 2) == 6


def test_outputs_stay_within_the_budget() -> None:
    assert room(Expectation(1e-3, 1e8)) == 10
    assert room(Expectation(1e-3, 1e8), 9) == 1


def test_an_unconfirmed_guess_leaves_no_room_and_doubles_from_there() -> None:
    guess = Expectation(0, 0)
    assert room(guess, 2, confirmed=0, threads_all=1) == 0
    assert room(guess, 2, confirmed=2, threads_all=1) == 2
    assert room(guess, 2, confirmed=4, threads_all=1) == 4


def test_confirmations_are_shared_between_the_workers() -> None:
    assert room(Expectation(0, 0), 2, confirmed=16, threads_all=8) == 2


def test_the_end_of_the_queue_is_shared_out() -> None:
    assert room(Expectation(0, 0), queued=64, threads_all=8) == 4
    assert room(Expectation(0, 0), queued=1, threads_all=1) == 0


def test_the_budget_is_a_share_of_free_memory() -> None:
    budget = LIMITS.budget_bytes
    assert budget(memory_limit_bytes=10**9, memory_used_bytes=0) == 10**7
    assert budget(memory_limit_bytes=10**9, memory_used_bytes=10**9 // 2) == 10**7 / 2
    assert budget(memory_limit_bytes=10**9, memory_used_bytes=2 * 10**9) == 0
    assert budget(memory_limit_bytes=0, memory_used_bytes=10**9) == 64 * 2**20


def test_longer_and_heavier_is_believed_sooner_than_shorter_and_lighter() -> None:
    expectation = Expectation(1.0, 1000)
    expectation.observe(2.0, 2000)
    assert (expectation.seconds, expectation.nbytes) == (1.5, 2000)
    expectation.observe(0.7, 1000)
    assert expectation.seconds == pytest.approx(1.4)
    assert expectation.nbytes == pytest.approx(1937.5)


def test_a_guess_that_was_wrong_by_much_is_reported_until_acted_on() -> None:
    expectation = Expectation(1e-3, 1000)
    assert not expectation.observe(1e-3, 1999)
    assert expectation.observe(1e-3, 2001)
    assert expectation.observe(1e-3, 2001)
    expectation.act()
    assert not expectation.observe(1e-3, 2001)
    assert expectation.observe(1.0, 0)


def test_noise_below_the_turnaround_is_no_surprise() -> None:
    assert not Expectation(1e-6, 0).observe(1e-3, 0)


def test_too_much_in_hand_is_taken_back_down_to_the_limit() -> None:
    slow = Expectation(10e-3, 0)
    assert excess_tasks(LIMITS, hand_of(60, slow), slow, floor_tasks=2) == 58
    heavy = Expectation(0, 1e8)
    assert excess_tasks(LIMITS, hand_of(60, heavy), heavy, floor_tasks=2) == 50


def test_a_little_too_much_in_hand_is_left() -> None:
    heavy = Expectation(0, 1e8)
    assert excess_tasks(LIMITS, hand_of(15, heavy), heavy, floor_tasks=2) == 0


@given(seconds, sizes, counts, threads, st.floats(0, 1e15), counts, counts, threads)
def test_room_keeps_every_limit(
    duration_s: float,
    nbytes: float,
    tasks: int,
    threads: int,
    budget_bytes: float,
    confirmed: int,
    queued: int,
    threads_more: int,
) -> None:
    expectation = Expectation(duration_s, nbytes)
    in_flight = hand_of(tasks, expectation, threads=threads, budget_bytes=budget_bytes)
    floor = floor_tasks(threads, 1.1)
    threads_all = threads + threads_more
    number = room_tasks(
        LIMITS,
        in_flight,
        expectation,
        floor_tasks=floor,
        confirmed=confirmed,
        queued=queued,
        threads_all=threads_all,
    )
    assert number >= 0
    if number:
        in_flight.add(number, expectation)
        assert in_flight.tasks <= LIMITS.tasks_per_thread * threads
        assert in_flight.seconds <= LIMITS.seconds * (1 + 1e-9)
        assert in_flight.nbytes <= budget_bytes * (1 + 1e-9)
        assert in_flight.tasks <= floor + confirmed * threads / threads_all
        assert number <= queued / 2
        # A number that was just found to fit is not taken back.
        assert not excess_tasks(LIMITS, in_flight, expectation, floor_tasks=floor)


@given(seconds, sizes, counts, threads, st.floats(0, 1e15))
def test_tasks_that_are_taken_back_leave_the_floor(
    duration_s: float, nbytes: float, tasks: int, threads: int, budget_bytes: float
) -> None:
    expectation = Expectation(duration_s, nbytes)
    in_flight = hand_of(tasks, expectation, threads=threads, budget_bytes=budget_bytes)
    floor = floor_tasks(threads, 1.1)
    number = excess_tasks(LIMITS, in_flight, expectation, floor_tasks=floor)
    assert number >= 0
    if number:
        assert tasks - number >= floor
        assert 2 * number >= tasks


@given(st.lists(st.tuples(seconds, sizes), min_size=1))
def test_an_expectation_lies_between_the_least_and_the_most_seen(
    samples: list[tuple[float, float]],
) -> None:
    expectation = Expectation(*samples[0])
    for sample in samples[1:]:
        expectation.observe(*sample)
    durations, weights = zip(*samples, strict=True)
    assert min(durations) <= expectation.seconds * (1 + 1e-9)
    assert expectation.seconds <= max(durations) * (1 + 1e-9)
    assert min(weights) <= expectation.nbytes * (1 + 1e-9)
    assert expectation.nbytes <= max(weights) * (1 + 1e-9)


def test_more_of_any_limit_never_means_less_room() -> None:
    expectation = Expectation(1e-3, 1e6)
    before = room(expectation)
    in_flight = hand_of(0, expectation)
    wider: list[tuple[str, Any]] = [
        ("seconds", 1.0),
        ("tasks_per_thread", 1000),
        ("memory_share", 1.0),
    ]
    for field, value in wider:
        limits = dataclasses.replace(LIMITS, **{field: value})
        assert room_tasks(limits, in_flight, expectation, floor_tasks=2, **STEADY) >= before
