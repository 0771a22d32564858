"""A small real run."""

from __future__ import annotations

import pytest

from benches.python import slots


@pytest.mark.parametrize("ours", [False, True])
def test_a_worker_is_chosen_among_many(ours: bool) -> None:
    assert slots.choice_us(ours=ours, workers=8, choices=20) > 0


def test_local_tasks_are_timed_beside_dasks() -> None:
    found = slots.local_us(repeats=1, tasks=50)
    assert all(each.median > 0 for pair in found.values() for each in pair)


def test_small_tasks_of_which_some_ask_are_timed_with_the_core_and_without() -> None:
    found = slots.mixed_us(repeats=1, tasks=40)
    assert set(found) == {False, True}
    assert all(each.median > 0 for pair in found.values() for each in pair)


def test_a_unit_goes_on_behind_a_task_that_is_blocked() -> None:
    first_s, between_s = slots.gaps_s(ours=True, tasks=3)
    assert first_s > 0
    assert between_s.maximum >= between_s.median
