"""The peers of ``backhaul bench p2p``: one module each, found by its place here.

A module defines ``PEER`` (a :class:`Peer`) and, unless it starts contenders of its own,
``make_driver(options, role=…)``. Importing it imports the standard library only; the peer's own
packages are imported by its driver.
"""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from backhaul_bench.pair import Contender, ProcessPair

__all__ = ["Interpreter", "Peer", "Variant", "discover", "interpreters"]


@dataclass(frozen=True)
class Interpreter:
    """A Python that peers can be run with, and what it has."""

    python: str
    #: Folder of each package that was asked for and found; empty for a single module
    packages: Mapping[str, str]

    def program(self, name: str) -> str | None:
        """Find a program beside the interpreter, then in the path.

        Parameters
        ----------
        name : str
            Name of the program.

        Returns
        -------
        str or None
            Its path.
        """
        return shutil.which(name, path=os.path.dirname(self.python)) or shutil.which(name)


@dataclass(frozen=True)
class Variant:
    """One way to use a peer, which is one row of the results."""

    #: Difference from other variants, such as ``default`` or ``shared memory``; empty if there is
    #: one
    label: str
    #: ``async`` or ``blocking``; ``C`` for a program without Python
    api: str
    options: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Peer:
    """A peer to measure, its requirements, and the way to get it."""

    name: str
    variants: Sequence[Variant]
    #: Packages that the interpreter must have
    packages: Sequence[str] = ()
    #: Programs that must be beside the interpreter or in the path
    programs: Sequence[str] = ()
    install: str = "make bench, or pip install -r requirements/bench.txt"
    #: Starts a variant in another way than as two processes with ``make_driver``
    start_variant: Callable[[Variant, Interpreter], Contender] | None = None

    def interpreter(self, candidates: Sequence[Interpreter]) -> Interpreter | None:
        """Choose the first interpreter that has all this peer needs.

        Parameters
        ----------
        candidates : sequence of Interpreter
            In order of preference.

        Returns
        -------
        Interpreter or None
            None if the peer is missing.
        """
        for candidate in candidates:
            if all(name in candidate.packages for name in self.packages) and all(
                candidate.program(name) for name in self.programs
            ):
                return candidate
        return None

    def start(self, variant: Variant, interpreter: Interpreter) -> Contender:
        """Start one variant.

        Parameters
        ----------
        variant : Variant
            One of :attr:`variants`.
        interpreter : Interpreter
            What :meth:`interpreter` chose.

        Returns
        -------
        Contender
            To be closed by the caller.

        Raises
        ------
        ContenderFailed
            If it did not start.
        """
        if self.start_variant is not None:
            return self.start_variant(variant, interpreter)
        return ProcessPair(
            f"{__name__}.{_MODULES[self.name]}",
            variant.options,
            python=interpreter.python,
            environment=variant.environment,
        )


#: Module of each peer, by the peer's name
_MODULES: dict[str, str] = {}


def discover() -> dict[str, Peer]:
    """Find every peer.

    Returns
    -------
    dict of str to Peer
        By name, sorted.
    """
    found: dict[str, Peer] = {}
    for info in pkgutil.iter_modules(__path__):
        peer = getattr(importlib.import_module(f"{__name__}.{info.name}"), "PEER", None)
        if isinstance(peer, Peer):
            found[peer.name] = peer
            _MODULES[peer.name] = info.name
    return dict(sorted(found.items()))


def interpreters(pythons: Sequence[str], packages: Sequence[str]) -> list[Interpreter]:
    """Ask interpreters which packages they have, without importing any.

    Parameters
    ----------
    pythons : sequence of str
        Paths of interpreters. Interpreters that do not run are left out.
    packages : sequence of str
        Names of top-level packages or modules.

    Returns
    -------
    list of Interpreter
        In the order given.
    """
    question = (
        "import importlib.util, json, sys\n"
        "specs = {name: importlib.util.find_spec(name) for name in sys.argv[1:]}\n"
        "print(json.dumps({name: next(iter(spec.submodule_search_locations or ['']))"
        " for name, spec in specs.items() if spec}))"
    )
    found = []
    for python in pythons:
        try:
            answer = subprocess.run(
                [python, "-c", question, *packages],
                capture_output=True,
                check=True,
                timeout=60,
            )
        except (OSError, subprocess.SubprocessError):
            continue
        found.append(Interpreter(python, json.loads(answer.stdout)))
    return found


def default_pythons() -> list[str]:
    """List the interpreters to look for peers in: this one, and the one that ``make bench`` fills.

    Returns
    -------
    list of str
        Paths; this interpreter is first.
    """
    beside = Path(sys.prefix).parent / ".venv-bench" / "bin" / "python"
    return [sys.executable, *([str(beside)] if beside.exists() else [])]
