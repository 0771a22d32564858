"""``links``: shuffles and merges between two hosts, over a link of a limited rate.

The hosts are network namespaces, so the command needs root, and the ``ip`` and ``tc`` of iproute2.
Each host has one worker of one thread. Half of the rows have to cross the link, a quarter in each
direction; *share* is that direction's bytes over what the link could have carried, during the whole
job, and while most of these bytes passed.
"""

from __future__ import annotations

import json
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
_JOBS: Final = ("shuffle", "merge")
#: Bytes that the token bucket of a link holds, in seconds of its rate
_BURST_S: Final = 0.001
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
    """Exchange dataframes between two hosts, by P2P over tcp and by the exchange."""
    console = open_console(wide=True)
    print_machine(console, Machine.here(), installed_versions("backhaul", "distributed", "pandas"))
    table = Table(
        title=f"\nmedians of {repetitions}, {rows_per_worker:,} rows a worker, {chunks} partitions",
        title_justify="left",
    )
    for column in ("job", "Gb/s"):
        table.add_column(column)
    for column in ("protocol", "s", "range, s", "MB each way", "share", "while busy"):
        table.add_column(column, justify="right")
    partitions = 2 * chunks
    rows = max(1, rows_per_worker // chunks)
    made = {
        "shuffle": (
            "benches.python.shuffle_job:Shuffle",
            {"method": "p2p", "columns": 4, "partitions": partitions, "rows": rows},
        ),
        "merge": (
            "benches.python.merge_job:Merge",
            {"shuffle": "p2p", "partitions": partitions, "rows": rows},
        ),
    }
    with _hosts() as (namespaces, devices), ExitStack() as stack:
        clusters = {
            protocol: stack.enter_context(_cluster(protocol, namespaces)) for protocol in _PROTOCOLS
        }
        seeds = iter(range(1, 1 << 30))
        for rate in rates:
            for namespace, device in zip(namespaces, devices, strict=True):
                _limit(namespace, device, rate * 1e9 / 8)
            for name in jobs:
                job, parameters = made[name]

                def measure(protocol: str, job: str = job, parameters: Any = parameters) -> Any:
                    return _ask(
                        clusters[protocol],
                        {"job": job, "parameters": {**parameters, "seed": next(seeds)}},
                    )

                for protocol in _PROTOCOLS:
                    measure(protocol)
                found = in_turn(
                    _PROTOCOLS, measure, repetitions=repetitions, on_step=lambda *step: None
                )
                for protocol, runs in found.items():
                    table.add_row(name, str(rate), protocol, *_cells(runs, rate * 1e9 / 8))
    console.print(table)


def _cells(runs: Sequence[dict[str, Any]], bytes_per_s: float) -> tuple[str, ...]:
    seconds = [run["seconds"] for run in runs]
    # The direction with more bytes, of each run
    moved = [max(run["ways"]) for run in runs]
    shares = [max(run["ways"])[0] / run["seconds"] / bytes_per_s for run in runs]
    busy = [nbytes / took_s / bytes_per_s if took_s else 0.0 for nbytes, took_s in moved]
    return (
        f"{statistics.median(seconds):.2f}",
        f"{min(seconds):.2f} to {max(seconds):.2f}",
        f"{statistics.median(nbytes for nbytes, _ in moved) / 1e6:.0f}",
        f"{statistics.median(shares):.0%}",
        f"{statistics.median(busy):.0%}",
    )


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
def _cluster(protocol: str, namespaces: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    """Start a cluster with a worker on each host."""
    first, second = namespaces
    options = {
        "hosts": list(_HOSTS.values()),
        "protocol": protocol,
        "within": ["ip", "netns", "exec", second],
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
