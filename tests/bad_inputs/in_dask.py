"""Bad input in Dask: its configuration, addresses of comms, files with a secret, commands."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from click.testing import CliRunner
from distributed.comm import connect, listen

import dask
from backhaul.cli import main as backhaul_command
from backhaul.dask.comm.native_context import shared_context
from backhaul.dask.config.settings import (
    Settings,
    beside_tasks_max,
    small_result_limits,
    switched_on,
    transfers_links_max,
    work_in_hand_limits,
)
from backhaul.dask.launch.command import main as dask_command
from tests.bad_inputs.cases import Case, Place

__all__ = ["COMMANDS", "COMMS", "CONFIGURATION", "SECRETS"]

ROOT = "distributed.comm.backhaul"


def _sets(
    key: str, value: object, read: Callable[[], object] = lambda: shared_context(Settings.current())
) -> Case:
    def give(_: Place) -> object:
        with dask.config.set({f"{ROOT}.{key}": value}):
            return read()

    return Case(f"`{key}: {'null' if value is None else value}`", give)


CONFIGURATION = [
    _sets("eager", "much"),
    _sets("ring", "5000"),
    _sets("pool", -1),
    _sets("spin", "-50us"),
    _sets("spin", "soon"),
    _sets("credit-messages", "many"),
    _sets("credit-messages", 1),
    _sets("frames-limit", None),
    _sets("frames-limit", 0),
    _sets("high-water-mark", None),
    _sets("lanes", ["shm", "pigeon"]),
    _sets("carriers", ["coach"]),
    _sets("timeouts.handshake", "tomorrow"),
    _sets("timeouts.linger", -1),
    _sets("arena.enabled", "perhaps"),
    _sets("arena.limit", "all of it"),
    _sets("gpu.frames", 2),
    _sets("gpu.allocator", "mine"),
    _sets("shared-memory-uids", "everybody"),
    _sets("hot-path.batching", "yes", lambda: switched_on("hot-path.batching")),
    _sets("work-in-hand.memory-share", 2, work_in_hand_limits),
    _sets("work-in-hand.seconds", None, work_in_hand_limits),
    _sets("small-results.size", "little", small_result_limits),
    _sets("small-results.kept", -1, small_result_limits),
    _sets("resources.beside", -3, beside_tasks_max),
    _sets("transfers.links-limit", "no", transfers_links_max),
]


def _comm(make: Callable[[], Any]) -> Callable[[Place], object]:
    def give(_: Place) -> object:
        async def run() -> object:
            return await make()

        return asyncio.run(run())

    return give


COMMS = [
    Case("`connect('backhaul://')`", _comm(lambda: connect("backhaul://", timeout=60))),
    Case("`connect('backhaul://here')`", _comm(lambda: connect("backhaul://here", timeout=60))),
    Case(
        "`connect('backhaul://127.0.0.1:99999')`",
        _comm(lambda: connect("backhaul://127.0.0.1:99999", timeout=60)),
    ),
    Case(
        "`listen('backhaul://127.0.0.1:port', ...)`",
        _comm(lambda: listen("backhaul://127.0.0.1:port", print).start()),
    ),
]


def _file(name: str, make: Callable[[Path], object]) -> Callable[[Place], object]:
    def give(place: Place) -> object:
        path = place.folder / name
        make(path)
        with dask.config.set({f"{ROOT}.secret-file": str(path)}):
            return shared_context(Settings.current())

    return give


def _write(text: str, mode: int = 0o600) -> Callable[[Path], object]:
    def make(path: Path) -> None:
        path.write_text(text)
        path.chmod(mode)

    return make


def _both(_: Place) -> object:
    with dask.config.set({f"{ROOT}.secret": "one of them", f"{ROOT}.secret-file": "another"}):
        return Settings.current()


_SECRET = "a secret of this cluster"

SECRETS = [
    Case("`secret` of 5 letters", _sets("secret", "short").give),
    Case("`secret` of digits without quotes", _sets("secret", 1234567890123456).give),
    Case("`secret` and `secret-file`", _both),
    _sets("secret-file", 7),
    Case("a file that is not there", _file("absent", lambda path: None)),
    Case("a folder", _file("folder", lambda path: path.mkdir())),
    Case("a pipe", _file("pipe", lambda path: os.mkfifo(path, 0o600))),
    Case("an empty file", _file("empty", _write(""))),
    Case("a file of mode 644", _file("open", _write(_SECRET, 0o644))),
    Case("a file of mode 620", _file("writable", _write(_SECRET, 0o620))),
    Case("a file of 5,000 bytes", _file("long", _write("x" * 5000))),
]


def _types(command: Any, *arguments: str) -> Callable[[Place], object]:
    def give(_: Place) -> object:
        result = CliRunner().invoke(command, arguments)
        assert result.exit_code != 0, result.output
        assert result.exception is None or isinstance(result.exception, SystemExit), result.output
        said = [line for line in result.output.splitlines() if line.strip()]
        return f"status {result.exit_code}: {said[-1]}"

    return give


def _backhaul(*arguments: str) -> Case:
    return Case(f"`backhaul {' '.join(arguments)}`", _types(backhaul_command, *arguments))


def _dask(*arguments: str) -> Case:
    return Case(f"`dask backhaul {' '.join(arguments)}`", _types(dask_command, *arguments))


COMMANDS = [
    _backhaul("measure"),
    _backhaul("bench", "p2p", "--sizes", "some"),
    _backhaul("bench", "p2p", "--peers", "pigeon"),
    _backhaul("topology", "--no-such-option"),
    _dask("plan", "--nworkers", "none"),
    _dask("plan", "--nthreads", "-1"),
    _dask("plan", "--policy", "random"),
    _dask("plan", "--machine", "/nowhere/machine.json"),
    _dask("plan", "--plan", "/nowhere/plan.json"),
]
