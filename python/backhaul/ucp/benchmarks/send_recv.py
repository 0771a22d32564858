"""How long a message takes to a peer and back: ``python -m backhaul.ucp.benchmarks.send_recv``.

Server and client are processes, on this host unless ``--server-only`` or ``--client-only`` says
otherwise::

    python -m backhaul.ucp.benchmarks.send_recv --n-bytes 1MiB --n-iter 1000 --reuse-alloc
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import statistics
import sys
from collections.abc import Sequence
from multiprocessing.queues import SimpleQueue
from typing import Any

from backhaul._units import format_bytes, parse_bytes
from backhaul.ucp._address import get_address
from backhaul.ucp._libs.utils import print_key_value, print_separator
from backhaul.ucp.benchmarks import echo

__all__ = ["main", "parse_args"]

#: Ways to wait, by the names of UCX-Py's backends; its core was the way to do without asyncio.
_BACKENDS = {"ucp-async": "async", "ucp-blocking": "blocking", "ucp-core": "blocking"}


def parse_args(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the options of the command line.

    Parameters
    ----------
    arguments : sequence of str, optional
        By default those of the process.

    Returns
    -------
    argparse.Namespace
        The options.
    """
    parser = argparse.ArgumentParser(
        prog="python -m backhaul.ucp.benchmarks.send_recv", description="Round trips of a message"
    )
    add = parser.add_argument
    add(
        "-n",
        "--n-bytes",
        metavar="BYTES",
        default="10 MB",
        type=_size,
        help="size of the message, as 8, 64KiB or 10MB (default %(default)s)",
    )
    add("--n-iter", metavar="N", default=10, type=_count, help="round trips (default %(default)s)")
    add(
        "--n-warmup-iter",
        metavar="N",
        default=10,
        type=int,
        help="round trips before those that count (default %(default)s)",
    )
    add(
        "-b",
        "--server-cpu-affinity",
        metavar="N",
        default=-1,
        type=int,
        help="CPU of the server (default: any)",
    )
    add(
        "-c",
        "--client-cpu-affinity",
        metavar="N",
        default=-1,
        type=int,
        help="CPU of the client (default: any)",
    )
    add(
        "-o",
        "--object_type",
        "--object-type",
        default="numpy",
        choices=["numpy", "cupy", "rmm"],
        help="kind of memory; no lane reaches that of GPUs yet (default %(default)s)",
    )
    add(
        "-s",
        "--server-address",
        metavar="IP",
        default=None,
        help="address of the server (default: that of this host)",
    )
    add("-d", "--server-dev", metavar="N", default=0, type=int, help="GPU of the server")
    add("-e", "--client-dev", metavar="N", default=0, type=int, help="GPU of the client")
    add("--reuse-alloc", action="store_true", help="receive into the same memory each time")
    add("--server-only", action="store_true", help="start the server alone")
    add("--client-only", action="store_true", help="start the client alone; needs --port")
    add("-p", "--port", default=None, type=int, help="port of the server (default: any)")
    add("--enable-am", action="store_true", help="active messages in place of tagged ones")
    add(
        "-l",
        "--backend",
        default="ucp-async",
        choices=sorted(_BACKENDS),
        help="await, or wait (ucp-core means ucp-blocking) (default %(default)s)",
    )
    add(
        "--error-handling",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="whether endpoints close when their peer dies (default: they do)",
    )
    add("-v", "--verbose", action="store_true", help="accepted; times are always printed")
    add("--no-detailed-report", action="store_true", help="print no times of single round trips")
    options = parser.parse_args(arguments)
    if options.object_type != "numpy":
        parser.error(
            f"no lane reaches the memory of GPUs yet, got --object_type {options.object_type}"
        )
    if options.client_only and options.port is None:
        parser.error("--client-only needs the --port of the server")
    if options.client_only and options.server_only:
        parser.error("--client-only and --server-only exclude each other")
    return options


def _size(text: str) -> int:
    # UCX-Py's users write "10 Mb" and mean megabytes.
    try:
        return parse_bytes(text.replace("_", ""))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be 1 or more, got {text!r}")
    return int(text)


def _serve(options: argparse.Namespace, ports: SimpleQueue[int]) -> None:
    _pin(options.server_cpu_affinity)
    job = echo.Job.of(options)
    if _BACKENDS[options.backend] == "async":
        asyncio.run(echo.serve(job, ports.put))
    else:
        echo.serve_blocking(job, ports.put)


def _connect(
    options: argparse.Namespace, host: str, port: int, times: SimpleQueue[list[float]]
) -> None:
    _pin(options.client_cpu_affinity)
    job = echo.Job.of(options)
    if _BACKENDS[options.backend] == "async":
        times.put(asyncio.run(echo.measure(job, host, port)))
    else:
        times.put(echo.measure_blocking(job, host, port))


def _pin(cpu: int) -> None:
    if cpu >= 0:
        os.sched_setaffinity(0, [cpu])


def _print_report(options: argparse.Namespace, times: list[float]) -> None:
    bandwidth = [2 * options.n_bytes / seconds for seconds in times]
    print_separator("=")
    print_key_value("Iterations", options.n_iter)
    print_key_value("Bytes", format_bytes(options.n_bytes))
    print_key_value("Object type", options.object_type)
    print_key_value("Reuse allocation", options.reuse_alloc)
    print_key_value("Transfer API", "AM" if options.enable_am else "TAG")
    print_key_value("Backend", options.backend)
    print_key_value("UCX_TLS", os.environ.get("UCX_TLS", "all"))
    for side in ("server", "client"):
        cpu = getattr(options, f"{side}_cpu_affinity")
        print_key_value(f"{side.capitalize()} CPU", cpu if cpu >= 0 else "affinity not set")
    print_separator("=")
    total_bytes_per_s = 2 * options.n_bytes * len(times) / sum(times)
    print_key_value("Bandwidth (average)", f"{format_bytes(total_bytes_per_s)}/s")
    print_key_value("Bandwidth (median)", f"{format_bytes(statistics.median(bandwidth))}/s")
    print_key_value("Latency (average)", f"{round(statistics.fmean(times) * 1e9 / 2)} ns")
    print_key_value("Latency (median)", f"{round(statistics.median(times) * 1e9 / 2)} ns")
    if not options.no_detailed_report:
        print_separator("=")
        print_key_value("Iterations", "Bandwidth, Latency")
        print_separator("-")
        for number, (seconds, rate) in enumerate(zip(times, bandwidth, strict=True)):
            print_key_value(number, f"{format_bytes(rate)}/s, {round(seconds * 1e9 / 2)}ns")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run server and client as the options say, and print the times.

    Parameters
    ----------
    arguments : sequence of str, optional
        By default those of the process.

    Returns
    -------
    int
        Exit status: 0 if all processes ended well, else 1.
    """
    options = parse_args(arguments)
    spawn = multiprocessing.get_context("spawn")
    children: list[Any] = []
    port = options.port
    host = options.server_address or _own_address()
    if not options.client_only:
        ports: SimpleQueue[int] = spawn.SimpleQueue()
        children.append(spawn.Process(target=_serve, args=(options, ports), daemon=True))
        children[-1].start()
        port = _first(ports, children)
        sys.stdout.write(f"Server Running at {host}:{port}\n")
        sys.stdout.flush()
    if not options.server_only:
        sys.stdout.write(f"Client connecting to server at {host}:{port}\n")
        times: SimpleQueue[list[float]] = spawn.SimpleQueue()
        arguments_of_client = (options, host, port, times)
        children.append(spawn.Process(target=_connect, args=arguments_of_client, daemon=True))
        children[-1].start()
        _print_report(options, _first(times, children))
    for child in children:
        child.join()
    return int(any(child.exitcode for child in children))


def _first(results: SimpleQueue[Any], children: list[Any]) -> Any:
    """Take what a child gives, unless one of them fails before."""
    while results.empty():
        for child in children:
            child.join(0.01)
            if child.exitcode and results.empty():
                raise SystemExit(f"{child.name} ended with status {child.exitcode}")
    return results.get()


def _own_address() -> str:
    try:
        return get_address()
    except RuntimeError:  # no interface but the loopback
        return "127.0.0.1"


if __name__ == "__main__":
    sys.exit(main())
