"""``links``: shuffles, merges and rechunks between two hosts, over a link of a limited rate.

The hosts are network namespaces, so the command needs root, and the ``ip`` and ``tc`` of iproute2.
Each host has one worker of one thread, and half of the inputs. Half of the data has to cross the
link, a quarter in each direction; *share* is that direction's bytes over what the link could have
carried, during the whole job, and while most of these bytes passed. *Bound* is a time that the job
cannot well go below: that of the same job with both workers on one host, or that of its bytes on
the link, whichever is longer. Each rate begins with what plain sockets carry in both directions.
*CPU s* are those of scheduler, client and workers, so without the kernel's for the link.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Final

import click
from rich.table import Table

from backhaul._machine import Machine, installed_versions
from backhaul._output import open_console, print_machine
from backhaul_bench.option_types import ListType, NumbersType
from benches.python.children import in_turn

__all__ = ["main"]

_PROTOCOLS: Final = ("tcp", "backhaul")
_HOSTS: Final = {"near": "10.77.0.2", "far": "10.77.0.3"}
_JOBS: Final = ("shuffle", "merge", "rechunk")
#: Columns of a shuffle, with the key, of 8 bytes each; a rechunk has as many bytes
_COLUMNS: Final = 5
#: Name of the cluster whose workers are both on the first host
_ONE_HOST: Final = "one host"
_SOCKETS_S: Final = 1.0
#: Bytes that the token bucket of a link holds, in seconds of its rate
_BURST_S: Final = 0.005
_BURST_BYTES_MIN: Final = 1 << 16


@click.command("links")
@click.option(
    "--rates",
    type=NumbersType(whole=True),
    default="1,10",
    show_default=True,
    help="Comma-separated: Gb/s of the link, in each direction.",
)
@click.option(
    "--job",
    "jobs",
    type=ListType(_JOBS, all=_JOBS),
    default="all",
    show_default=True,
    help=f"Comma-separated: {', '.join(_JOBS)}.",
)
@click.option("--rows-per-worker", type=click.IntRange(1), default=4_000_000, show_default=True)
@click.option(
    "--chunks",
    type=click.IntRange(1),
    default=20,
    show_default=True,
    help="Partitions of each dataframe for each worker.",
)
@click.option("--repetitions", type=click.IntRange(1), default=5, show_default=True)
def main(
    rates: Sequence[int], jobs: Sequence[str], rows_per_worker: int, chunks: int, repetitions: int
) -> None:
    """Exchange data between two hosts, by P2P over tcp and by the exchange."""
    console = open_console(wide=True)
    print_machine(console, Machine.here(), installed_versions("backhaul", "distributed", "pandas"))
    table = Table(
        title=f"\nmedians of {repetitions}, {rows_per_worker:,} rows a worker, {chunks} partitions",
        title_justify="left",
    )
    for column in ("job", "Gb/s"):
        table.add_column(column)
    names = ("protocol", "s", "range, s", "CPU s", "MB each way", "share", "while busy", "bound, s")
    for column in names:
        table.add_column(column, justify="right")
    partitions = 2 * chunks
    rows = max(1, rows_per_worker // chunks)
    size = math.isqrt(partitions * rows * _COLUMNS)
    made = {
        "shuffle": (
            "benches.python.shuffle_job:Shuffle",
            {"method": "p2p", "columns": _COLUMNS - 1, "partitions": partitions, "rows": rows},
        ),
        "merge": (
            "benches.python.merge_job:Merge",
            {"shuffle": "p2p", "partitions": partitions, "rows": rows},
        ),
        "rechunk": (
            "benches.python.rechunk_job:Rechunk",
            {"method": "p2p", "size": size, "chunks": -(-size // partitions)},
        ),
    }
    with _hosts() as (namespaces, devices), ExitStack() as stack:
        clusters = {
            name: stack.enter_context(_cluster(name, namespaces))
            for name in (*_PROTOCOLS, _ONE_HOST)
        }
        seeds = iter(range(1, 1 << 30))

        def measured(name: str, protocols: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
            job, parameters = made[name]

            def measure(protocol: str) -> Any:
                question = {"job": job, "parameters": {**parameters, "seed": next(seeds)}}
                return _ask(clusters[protocol], question)

            for protocol in protocols:
                measure(protocol)
            return in_turn(protocols, measure, repetitions=repetitions, on_step=lambda *step: None)

        alone_s = {}
        for name in jobs:
            (runs,) = measured(name, [_ONE_HOST]).values()
            alone_s[name] = statistics.median(run["seconds"] for run in runs)
            table.add_row(name, "", _ONE_HOST, *_times(runs))
        for rate in rates:
            bytes_per_s = rate * 1e9 / 8
            for namespace, device in zip(namespaces, devices, strict=True):
                _limit(namespace, device, bytes_per_s)
            by_sockets = _by_sockets(namespaces) / bytes_per_s
            table.add_row("", str(rate), "sockets", *[""] * 5, f"{by_sockets:.0%}")
            for name in jobs:
                for protocol, runs in measured(name, _PROTOCOLS).items():
                    cells = _cells(runs, bytes_per_s, alone_s[name])
                    table.add_row(name, str(rate), protocol, *cells)
    console.print(table)


def _times(runs: Sequence[dict[str, Any]]) -> tuple[str, str, str]:
    seconds = [run["seconds"] for run in runs]
    return (
        f"{statistics.median(seconds):.2f}",
        f"{min(seconds):.2f} to {max(seconds):.2f}",
        f"{statistics.median(run['cpu_seconds'] for run in runs):.2f}",
    )


def _cells(runs: Sequence[dict[str, Any]], bytes_per_s: float, alone_s: float) -> tuple[str, ...]:
    # The direction with more bytes, of each run
    moved = [max(run["ways"]) for run in runs]
    shares = [max(run["ways"])[0] / run["seconds"] / bytes_per_s for run in runs]
    busy = [nbytes / took_s / bytes_per_s if took_s else 0.0 for nbytes, took_s in moved]
    nbytes = statistics.median(nbytes for nbytes, _ in moved)
    return (
        *_times(runs),
        f"{nbytes / 1e6:.0f}",
        f"{statistics.median(shares):.0%}",
        f"{statistics.median(busy):.0%}",
        f"{max(alone_s, nbytes / bytes_per_s):.2f}",
    )


def _by_sockets(namespaces: Sequence[str]) -> float:
    """Return the bytes in a second that plain sockets carry, in the slower direction."""
    children = [
        subprocess.Popen(
            [
                *("ip", "netns", "exec", namespace, sys.executable),
                *("-m", "benches.python.links_sockets", here, there, str(_SOCKETS_S)),
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        for namespace, here, there in zip(
            namespaces, _HOSTS.values(), reversed(_HOSTS.values()), strict=True
        )
    ]
    return min(float(child.communicate(timeout=120)[0]) for child in children)


@contextmanager
def _hosts() -> Iterator[tuple[list[str], list[str]]]:
    """Make two network namespaces that are joined by a link; they are removed in the end."""
    if os.geteuid() != 0:
        raise click.ClickException("network namespaces need root")
    names = [f"bhl{os.getpid()}{host}" for host in _HOSTS]
    made = []
    try:
        for name in names:
            _command("ip", "netns", "add", name)
            made.append(name)
        first, second = names
        peer = ["type", "veth", "peer", "name", "eth0", "netns", second]
        _command("ip", "link", "add", "eth0", "netns", first, *peer)
        for name, address in zip(names, _HOSTS.values(), strict=True):
            _command("ip", "-n", name, "address", "add", f"{address}/24", "dev", "eth0")
            _command("ip", "-n", name, "link", "set", "lo", "up")
            _command("ip", "-n", name, "link", "set", "eth0", "up")
        yield names, ["eth0", "eth0"]
    finally:
        for name in made:
            _command("ip", "netns", "del", name)


def _limit(namespace: str, device: str, bytes_per_s: float) -> None:
    burst = max(_BURST_BYTES_MIN, int(bytes_per_s * _BURST_S))
    rate = f"rate {bytes_per_s * 8:.0f}bit burst {burst} latency 100ms"
    _command("tc", "-n", namespace, *f"qdisc replace dev {device} root tbf {rate}".split())


@contextmanager
def _cluster(name: str, namespaces: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    """Start a cluster over a protocol with a worker on each host, or with both on the first."""
    first, second = namespaces
    near, far = _HOSTS.values()
    options = {
        "hosts": [near, near] if name == _ONE_HOST else [near, far],
        "protocol": "backhaul" if name == _ONE_HOST else name,
        "within": [] if name == _ONE_HOST else ["ip", "netns", "exec", second],
    }
    child = subprocess.Popen(
        [
            *("ip", "netns", "exec", first, sys.executable),
            *("-m", "benches.python.links_child", json.dumps(options)),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        _answer(child)
        yield child
    finally:
        assert child.stdin is not None
        child.stdin.close()
        child.wait(120)


def _ask(child: subprocess.Popen[str], question: dict[str, Any]) -> Any:
    assert child.stdin is not None
    child.stdin.write(json.dumps(question) + "\n")
    child.stdin.flush()
    return _answer(child)


def _answer(child: subprocess.Popen[str]) -> Any:
    assert child.stdout is not None
    line = child.stdout.readline()
    if not line:
        raise click.ClickException("a cluster has ended; its messages are above")
    return json.loads(line)


def _command(*arguments: str) -> None:
    subprocess.run(arguments, check=True, timeout=60)
