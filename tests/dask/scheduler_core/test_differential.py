"""Upstream's scheduler and ours are equal on random events; `make differential` for more."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.dask.forked import Forks


@pytest.fixture(scope="module")
def differential() -> Iterator[Forks]:
    """Run random events in processes apart: upstream's modules are loaded in another way there."""
    with Forks("tests.dask.scheduler_core.__main__") as forks:
        yield forks


@pytest.mark.parametrize("looks", [[], ["--every"]], ids=["now-and-then", "every"])
def test_equal_on_a_few_streams(differential: Forks, looks: list[str]) -> None:
    ended = differential("--seeds", "4", "--length", "60", *looks)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    counted = re.search(r"'transitions': (\d+)", ended.stdout)
    assert counted, ended.stdout
    assert int(counted[1]) > 100, ended.stdout


def test_equal_where_tasks_ask_for_resources(differential: Forks) -> None:
    ended = differential("--seeds", "6", "--length", "80", "--ask")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    # Some wait for room, and are looked at again.
    assert "'no-worker to processing': " in ended.stdout, ended.stdout


def test_equal_when_tasks_that_ask_for_resources_are_converted(differential: Forks) -> None:
    ended = differential("--seeds", "6", "--first", "9", "--ask", "--convert")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    for what in ("conversions", "adopted no-worker", "adopted processing"):
        assert f"'{what}': " in ended.stdout, ended.stdout


@pytest.mark.parametrize("more", [[], ["--convert"], ["--ask"]], ids=["", "convert", "ask"])
def test_equal_where_tasks_are_placed_by_what_links_cost(
    differential: Forks, more: list[str]
) -> None:
    ended = differential("--seeds", "6", "--first", "11", "--place", *more)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    # Roots are planned, and results are on their way.
    for what in ("hints", "promises"):
        counted = re.search(rf"'{what}': (\d+)", ended.stdout)
        assert counted, ended.stdout
        assert int(counted[1]) > 0, ended.stdout


def test_links_that_ours_does_not_hear_of_are_noticed(differential: Forks) -> None:
    ended = differential("--seeds", "8", "--place", "--forget", "links", "--no-shrink")
    assert ended.returncode == 1, ended.stdout + ended.stderr


def test_a_missing_event_is_noticed_where_tasks_ask_for_resources(differential: Forks) -> None:
    ended = differential("--seeds", "2", "--ask", "--forget", "long_running", "--no-shrink")
    assert ended.returncode == 1, ended.stdout + ended.stderr


# A comparison after every event of both takes as long as the streams.
@pytest.mark.once(reason="random streams have the events of a release")
@pytest.mark.parametrize("more", [["--every"], ["--convert"]], ids=["", "convert"])
def test_equal_on_streams_that_once_were_not(differential: Forks, more: list[str]) -> None:
    ended = differential("--kept", *more)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_equal_when_the_core_is_converted_and_taken_back(differential: Forks) -> None:
    ended = differential("--seeds", "4", "--length", "60", "--convert")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    for what in ("conversions", "adoptions", "adopted memory", "adopted processing"):
        assert f"'{what}': " in ended.stdout, ended.stdout


def test_states_that_random_streams_rarely_reach_are_converted(differential: Forks) -> None:
    ended = differential("--directed")
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_a_part_that_is_not_converted_is_noticed(differential: Forks) -> None:
    ended = differential(
        "--seeds", "2", "--length", "60", "--convert", "--lose", "clients", "--no-shrink"
    )
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert "clients" in ended.stdout, ended.stdout


def test_a_missing_event_is_noticed(differential: Forks) -> None:
    ended = differential(
        "--seeds", "2", "--length", "60", "--forget", "task_finished", "--no-shrink"
    )
    assert ended.returncode == 1, ended.stdout + ended.stderr


@pytest.mark.parametrize("converts", [[], ["--convert"]], ids=["", "convert"])
def test_a_difference_that_no_message_shows_is_noticed(
    differential: Forks, converts: list[str]
) -> None:
    arguments = ["--seeds", "4", "--length", "60", "--shift", "--no-shrink", *converts]
    ended = differential(*arguments)
    assert ended.returncode == 1, ended.stdout + ended.stderr
    found = differences(ended.stdout)
    assert found, ended.stdout
    assert all(re.search(r": /task_groups/.*/(start|stop): upstream has", one) for one in found)
    # The event is named after which the difference was there, though no comparison was due then.
    assert found == differences(differential(*arguments, "--every").stdout)


def differences(output: str) -> list[str]:
    return [line for line in output.splitlines() if line.startswith("seed ")]
