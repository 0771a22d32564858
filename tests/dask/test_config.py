"""Configuration: read when used, checked with the key named, one context for equal settings."""

from __future__ import annotations

import multiprocessing
import os
from multiprocessing.connection import Connection

import pytest

import dask
from backhaul.dask import Settings
from backhaul.dask.comm.native_context import shared_context
from backhaul.dask.config.settings import transfers_links_max


def current(**values: object) -> Settings:
    """Read the settings with some keys set; ``_`` stands for ``-``, ``__`` for a level."""
    keys = {key.replace("__", ".").replace("_", "-"): value for key, value in values.items()}
    with dask.config.set({f"distributed.comm.backhaul.{key}": keys[key] for key in keys}):
        return Settings.current()


def test_defaults_leave_the_choice_to_backhaul_except_where_dask_has_one() -> None:
    settings = Settings.current()
    assert settings.high_water_mark_bytes == 64 * 2**20
    assert dict(settings.native) == {
        "backlog": 2048,
        "keep_alive_interval_s": 7.5,
        "keep_alive_timeout_s": 30.0,
        "segments_max": 1048576,
        "sends_max": 8192,
    }


def test_each_key_reaches_the_native_context_in_its_unit() -> None:
    settings = current(
        lanes=["shm", "tcp"],
        carriers="lease,cuda",
        eager="64kiB",
        credit="1MiB",
        credit_messages=32,
        message_limit="1GiB",
        frames_limit=1000,
        sends_limit=64,
        ring="2MiB",
        pool="128MiB",
        spin="50us",
        timeouts__handshake="2s",
        timeouts__keep_alive="8s",
        timeouts__linger="500ms",
    )
    assert dict(settings.native) == {
        "backlog": 2048,
        "carriers": ("lease", "cuda"),
        "credit_bytes": 2**20,
        "credit_messages": 32,
        "eager_bytes_max": 2**16,
        "handshake_timeout_s": 2.0,
        "keep_alive_interval_s": 2.0,
        "keep_alive_timeout_s": 8.0,
        "lanes": ("shm", "tcp"),
        "linger_s": 0.5,
        "message_bytes_max": 2**30,
        "pool_cached_bytes_max": 2**27,
        "ring_bytes": 2**21,
        "segments_max": 1000,
        "sends_max": 64,
        "spin_us": pytest.approx(50),
    }


def test_an_environment_variable_can_name_lanes_as_text() -> None:
    assert dict(current(lanes="shm, tcp").native)["lanes"] == ("shm", "tcp")


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("eager", "much", "a size like '64MiB'"),
        ("eager", -1, "a size"),
        ("spin", "long", "a time like '50us'"),
        ("frames_limit", "many", "a whole number"),
        ("lanes", 7, "a list of lanes"),
        ("carriers", 7, "a list of carriers"),
        ("gpu__frames", "perhaps", "true or false"),
        ("gpu__allocator", "malloc", "rmm, cupy, numba, backhaul, or a function"),
        ("gpu__allocator", "module:", "rmm, cupy, numba, backhaul, or a function"),
    ],
)
def test_a_bad_value_is_refused_with_its_key_and_the_allowed_values(
    key: str, value: object, allowed: str
) -> None:
    shown = key.replace("__", ".").replace("_", "-")
    with pytest.raises(ValueError, match=f"distributed.comm.backhaul.{shown} must"):
        current(**{key: value})
    with pytest.raises(ValueError, match=allowed):
        current(**{key: value})


def test_the_allocator_for_gpus_is_chosen_by_name() -> None:
    settings = Settings.current()
    assert (settings.device_frames, settings.device_allocator) == (None, None)
    settings = current(gpu__frames=False, gpu__allocator="pools:allocate")
    assert (settings.device_frames, settings.device_allocator) == (False, "pools:allocate")


def test_an_unknown_lane_is_refused_with_the_ones_there_are() -> None:
    with pytest.raises(ValueError, match=r"pigeon.*inproc.*shm.*tcp"):
        shared_context(current(lanes=["pigeon"]))


def test_equal_settings_share_a_context_and_others_have_their_own() -> None:
    context = shared_context(Settings.current())
    assert shared_context(current(high_water_mark="1MiB")) is context
    assert shared_context(current(eager="1kiB")) is not context


def _report_contexts(parent_id: int, connection: Connection) -> None:
    context = shared_context(Settings.current())
    connection.send((id(context) != parent_id, os.getpid()))


def test_a_forked_child_makes_its_own_context() -> None:
    context = shared_context(Settings.current())
    fork = multiprocessing.get_context("fork")
    ours, theirs = fork.Pipe()
    child = fork.Process(target=_report_contexts, args=(id(context), theirs))
    child.start()
    assert ours.poll(30)
    differs, pid = ours.recv()
    child.join(300)
    assert child.exitcode == 0
    assert differs
    assert pid == child.pid
    assert shared_context(Settings.current()) is context


def test_transfers_can_be_bounded_and_switched_off() -> None:
    root = "distributed.comm.backhaul.transfers"
    assert transfers_links_max() == 16384
    with dask.config.set({f"{root}.links-limit": "100"}):
        assert transfers_links_max() == 100
    with dask.config.set({f"{root}.enabled": False}):
        assert transfers_links_max() is None
    with (
        dask.config.set({f"{root}.links-limit": -1}),
        pytest.raises(ValueError, match=r"transfers\.links-limit must be a whole number, got -1"),
    ):
        transfers_links_max()
