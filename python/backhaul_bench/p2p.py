"""``backhaul bench p2p``: latency and bandwidth between two processes, beside peers.

All contenders of a run stay open; in each round every contender is measured at every size in turn,
so that what else happens on the machine meets all of them. Results are medians over the rounds.
"""

from __future__ import annotations

import json
import statistics
import subprocess
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from backhaul._machine import Machine, installed_versions
from backhaul_bench.pair import Contender, ContenderFailed, Latency
from backhaul_bench.peers import (
    Interpreter,
    Peer,
    Variant,
    device_copy,
    discover,
    interpreters,
    ours,
)
from backhaul_bench.report import Missing, Report
from backhaul_bench.summary import spread

__all__ = ["Options", "Row", "run", "stream_window"]

#: Distributions whose versions a reader needs to repeat a run
_DISTRIBUTIONS = ("backhaul", "tornado", "uvloop", "mpi4py", "mpich", "ucxx-cu12", "libucx-cu12")


@dataclass(frozen=True)
class Options:
    """Options of the benchmark."""

    sizes: Sequence[int]
    apis: Sequence[str]
    lanes: Sequence[str]
    #: Names of peers
    against: Sequence[str] = ()
    rounds: int = 3
    #: How long one measurement of one contender at one size may take, about
    budget_s: float = 0.3
    #: Interpreters to look for peers in, the preferred one first
    pythons: Sequence[str] = ()
    #: Where messages lie at both ends: ``host`` or ``cuda``
    memory: str = "host"
    #: GPUs of the server and the client
    devices: Sequence[int] = (0, 0)


@dataclass(frozen=True)
class Row:
    """One contender at one size: medians over rounds, and the extremes."""

    peer: str
    variant: str
    api: str
    lane: str
    size_bytes: int
    #: Half a round trip
    latency_p50_us: float
    latency_p50_us_min: float
    latency_p50_us_max: float
    latency_p99_us: float
    #: Size over one-way latency, one message at a time
    pingpong_bytes_per_s: float
    #: A window of messages one way, until the last is acknowledged
    stream_bytes_per_s: float
    stream_bytes_per_s_min: float
    stream_bytes_per_s_max: float


@dataclass
class _Entry:
    """A contender that runs, with what was measured of it."""

    peer: str
    variant: Variant
    contender: Contender
    latencies: dict[int, list[Latency]] = field(default_factory=dict)
    streams_bytes_per_s: dict[int, list[float]] = field(default_factory=dict)


def run(options: Options, *, on_step: Callable[[str, int], None]) -> Report[Options, Row]:
    """Measure Backhaul and the peers that are installed.

    Parameters
    ----------
    options : Options
        Options of the benchmark.
    on_step : callable
        Called before each measurement with what comes, and how many steps are left.

    Returns
    -------
    Report
        Peers that are missing or failed are in it, without rows.

    Raises
    ------
    ContenderFailed
        If Backhaul itself failed.
    """
    machine = Machine.here()
    found, missing = _find_peers(options)
    with ExitStack() as stack:
        entries: list[_Entry] = []
        steps = options.rounds * len(options.sizes)
        for peer, interpreter in found:
            for variant in peer.variants:
                on_step(f"starting {peer.name} {variant.label}", steps * (len(entries) + 1))
                try:
                    contender = peer.start(variant, interpreter)
                except ContenderFailed as error:
                    if peer.name == "backhaul":
                        raise
                    missing.append(Missing(f"{peer.name} {variant.label}", str(error), ""))
                    continue
                stack.callback(contender.close)
                entries.append(_Entry(peer.name, variant, contender))
        _measure(entries, options, missing, on_step)
    rows = [
        _row(entry, size)
        for size in options.sizes
        for entry in entries
        if entry.streams_bytes_per_s.get(size)
    ]
    versions = installed_versions(*_DISTRIBUTIONS)
    for interpreter in {interpreter.python: interpreter for _, interpreter in found}.values():
        versions.update(_versions_of(interpreter, versions))
    return Report(
        schema="backhaul.bench.p2p/1",
        machine=machine,
        versions=versions,
        options=options,
        rows=rows,
        missing=missing,
    )


def stream_window(nbytes: int, memory: str = "host") -> int:
    """Choose how many messages may be in flight: the same for every contender.

    Parameters
    ----------
    nbytes : int
        Size of each message, in bytes.
    memory : str, optional
        ``"host"`` or ``"cuda"``.

    Returns
    -------
    int
        Up to 16, but no more than 8 MiB of them, and at least 2: then the receive buffers of
        everything up to 1 MiB stay in cache, which is what reused buffers are for. On a GPU at
        least 4, as two copies are over before the next one is asked for.
    """
    return max(4 if memory == "cuda" else 2, min(16, (8 << 20) // nbytes))


def _find_peers(options: Options) -> tuple[list[tuple[Peer, Interpreter]], list[Missing]]:
    known = discover()
    wanted = [known[name] for name in options.against]
    packages = sorted({package for peer in wanted for package in peer.packages})
    candidates = interpreters(options.pythons, packages)
    on_gpu = options.memory == "cuda"
    own = ours.peer(options.apis, options.lanes, devices=options.devices if on_gpu else None)
    found, missing = [(own, candidates[0])], []
    if on_gpu:
        found.append((device_copy.peer(options.devices), candidates[0]))
    for peer in wanted:
        interpreter = peer.interpreter(candidates)
        if interpreter is not None:
            found.append((peer, interpreter))
            continue
        needs = ", ".join([*peer.packages, *peer.programs])
        missing.append(Missing(peer.name, f"not installed (needs {needs})", peer.install))
    return found, missing


def _measure(
    entries: list[_Entry],
    options: Options,
    missing: list[Missing],
    on_step: Callable[[str, int], None],
) -> None:
    """Fill the entries; one that fails is reported and left out from then on."""
    left = options.rounds * len(options.sizes) * len(entries)
    failed: set[int] = set()
    for number in range(options.rounds):
        for size in options.sizes:
            # Every other round in the other order: no entry is always the first after another
            for entry in entries if number % 2 == 0 else reversed(entries):
                if id(entry) not in failed:
                    on_step(f"{entry.peer} {entry.variant.label} {entry.variant.api}", left)
                    try:
                        _measure_one(entry, size, options.budget_s, options.memory)
                    except ContenderFailed as error:
                        if entry.peer == "backhaul":
                            raise
                        failed.add(id(entry))
                        name = f"{entry.peer} {entry.variant.label}"
                        missing.append(Missing(name, str(error), ""))
                        entry.contender.close()
                left -= 1
    on_step("done", 0)


def _measure_one(entry: _Entry, size: int, budget_s: float, memory: str) -> None:
    """Measure one size of one contender once, with as many repetitions as fit the budget."""
    contender = entry.contender
    earlier = entry.latencies.setdefault(size, [])
    guess = earlier[-1] if earlier else contender.pingpong(nbytes=size, iterations=10, warmup=5)
    one_way_s = max(guess.p50_ns * 1e-9, 1e-7)
    iterations = int(min(10_000, max(20, budget_s / 2 / (2 * one_way_s))))
    earlier.append(
        contender.pingpong(nbytes=size, iterations=iterations, warmup=max(5, iterations // 10))
    )
    window = stream_window(size, memory)
    count = int(min(20_000, max(2 * window, 20, budget_s / 2 / one_way_s)))
    rate = contender.stream(
        nbytes=size, count=count, warmup=max(window, count // 10), window=window
    )
    entry.streams_bytes_per_s.setdefault(size, []).append(rate)


def _row(entry: _Entry, size: int) -> Row:
    latency_us = spread([each.p50_ns / 1e3 for each in entry.latencies[size]])
    p99_us = statistics.median(each.p99_ns / 1e3 for each in entry.latencies[size])
    stream = spread(entry.streams_bytes_per_s[size])
    return Row(
        peer=entry.peer,
        variant=entry.variant.label,
        api=entry.variant.api,
        lane=entry.contender.lane,
        size_bytes=size,
        latency_p50_us=latency_us.median,
        latency_p50_us_min=latency_us.minimum,
        latency_p50_us_max=latency_us.maximum,
        latency_p99_us=p99_us,
        pingpong_bytes_per_s=size / (latency_us.median * 1e-6),
        stream_bytes_per_s=stream.median,
        stream_bytes_per_s_min=stream.minimum,
        stream_bytes_per_s_max=stream.maximum,
    )


def _versions_of(interpreter: Interpreter, known: dict[str, str]) -> dict[str, str]:
    """Ask a peer's interpreter for the versions of what this one lacks."""
    question = (
        "import json, sys\n"
        "from importlib import metadata\n"
        "found = {d.metadata['Name']: d.version for d in metadata.distributions()}\n"
        "print(json.dumps({n: found[n] for n in sys.argv[1:] if n in found}))"
    )
    names = [name for name in _DISTRIBUTIONS if name not in known]
    answer = subprocess.run(
        [interpreter.python, "-c", question, *names], capture_output=True, check=True, timeout=60
    )
    versions: dict[str, str] = json.loads(answer.stdout)
    return versions
