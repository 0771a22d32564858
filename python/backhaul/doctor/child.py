"""Processes that try what may harm the one that tries it: a library that spins, or crashes."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

__all__ = ["ChildFailed", "ask", "started"]

_TIMEOUT_S = 30.0


class ChildFailed(Exception):
    """The process ended otherwise than it should, or not in time."""


@contextlib.contextmanager
def started(what: str, *arguments: str) -> Iterator[None]:
    """Run a process beside what is done here, and check in the end that it went well.

    Raises
    ------
    ChildFailed
        If it fails, or does not end; also if that is why what is done here failed.
    """
    child = _start(what, *arguments)
    try:
        try:
            yield
        except Exception:
            if child.poll():
                _finish(what, child)
            raise
        _finish(what, child)
    finally:
        if child.poll() is None:
            child.kill()
            child.wait()


def ask(what: str, *arguments: str) -> Any:
    """Run a process, and read what it prints as JSON.

    Raises
    ------
    ChildFailed
        If it fails, crashes, or does not end.
    """
    child = _start(what, *arguments)
    return json.loads(_finish(what, child))


def _start(what: str, *arguments: str) -> subprocess.Popen[str]:
    # Modules are looked for where this process has found its own, and not where it happens to be.
    path = os.pathsep.join(entry for entry in sys.path if entry)
    try:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", f"backhaul.doctor.children.{what}", *arguments],
            env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
    except OSError as error:
        raise ChildFailed(f"{what}: {error}") from error


def _finish(what: str, child: subprocess.Popen[str]) -> str:
    try:
        said, complaint = child.communicate(timeout=_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.communicate()
        raise ChildFailed(f"{what}: no answer within {_TIMEOUT_S:.0f} s") from None
    if child.returncode != 0:
        lines = complaint.strip().splitlines()
        last = lines[-1] if lines else "it said nothing"
        raise ChildFailed(f"{what}: ended with {child.returncode}: {last}")
    return said
