"""Names, what importing loads, and the benchmarks."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

import backhaul.ucp as ucp
from backhaul.ucp.benchmarks import send_recv, utils


def run(*arguments: str) -> str:
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_loads_no_more_than_it_needs() -> None:
    code = "import sys, {}; print(' '.join(sys.modules))"
    assert "backhaul.ucp" not in run("-c", code.format("backhaul")).split()
    loaded = set(run("-c", code.format("backhaul.ucp")).split())
    assert "backhaul.ucp" in loaded
    assert not loaded & {"numpy", "hashlib", "multiprocessing", "backhaul.ucp.utils", "dask"}


def test_names_that_programs_import_are_there() -> None:
    from backhaul.ucp import core, exceptions, utils
    from backhaul.ucp._libs import arr, ucx_api
    from backhaul.ucp._libs import utils as low_utils
    from backhaul.ucp._libs.utils import format_bytes, format_time, print_multi

    assert arr.Array is ucp.Array is core.Array
    assert arr.asarray(b"x").nbytes == arr.asarray(arr.Array(b"x")).nbytes == 1
    assert ucx_api.UCXAddress is ucp.UCXAddress
    assert ucx_api.get_current_options()["TLS"] == "all"
    assert low_utils.get_address("lo") == "127.0.0.1"
    assert (format_bytes(2048), format_time(0.5)) == ("2 KiB", "500.000 ms")
    assert utils.hmean([1.0, 3.0]) == 1.5
    assert ucp.utils.hash64bits is utils.hash64bits
    assert ucp.exceptions is exceptions
    assert len(ucp.get_ucx_version()) == 3
    for name in ucp.__all__:
        assert getattr(ucp, name) is not None
    with pytest.raises(AttributeError, match="UCXWorker"):
        ucx_api.UCXWorker  # noqa: B018
    with pytest.raises(AttributeError, match="nonsense"):
        ucp.nonsense  # noqa: B018
    with pytest.raises(ValueError, match="two"):
        print_multi(["one"])


def test_get_event_loop_gives_the_running_one_or_a_new_one() -> None:
    async def running() -> bool:
        return ucp.utils.get_event_loop() is asyncio.get_running_loop()

    loop = ucp.utils.get_event_loop()
    assert loop.run_until_complete(running())
    loop.close()


@pytest.mark.parametrize(
    "options",
    [
        ["--reuse-alloc"],
        ["--enable-am", "--no-error-handling"],
        ["--backend", "ucp-core", "--server-cpu-affinity", "0"],
        ["-l", "ucp-blocking", "--enable-am", "--no-detailed-report"],
    ],
)
def test_the_benchmark_measures(options: list[str]) -> None:
    output = run(
        "-m", "backhaul.ucp.benchmarks.send_recv", "-n", "64KiB", "--n-iter", "5", *options
    )
    assert "Bytes                     | 64 KiB" in output
    assert "Latency (median)" in output
    assert ("4                         | " in output) is ("--no-detailed-report" not in options)


def test_server_and_client_of_the_benchmark_run_apart() -> None:
    command = [
        sys.executable,
        "-m",
        "backhaul.ucp.benchmarks.send_recv",
        "--n-iter",
        "3",
        "-n",
        "8",
    ]
    server = subprocess.Popen([*command, "--server-only"], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    host, _, port = server.stdout.readline().split()[-1].partition(":")
    output = run(*command[1:], "--client-only", "--server-address", host, "--port", port)
    assert "Iterations                | 3" in output
    server.communicate()
    assert server.returncode == 0


@pytest.mark.parametrize(
    "options",
    [
        ["-o", "cupy"],
        ["--client-only"],
        ["--client-only", "--server-only", "-p", "1"],
        ["-n", "many"],
        ["--n-iter", "0"],
        ["-l", "tornado"],
    ],
)
def test_the_benchmark_refuses_what_it_cannot_do(
    options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        send_recv.parse_args(options)
    errors = capsys.readouterr().err.splitlines()[-1]
    assert options[0].lstrip("-") in errors or options[-1] in errors


async def work(rank: int, eps: dict[int, ucp.Endpoint], factor: int) -> int:
    async def add(ep: ucp.Endpoint) -> int:
        await ep.send(bytes([rank]))
        await ep.recv(buffer := bytearray(1))
        return buffer[0]

    return factor * sum(await asyncio.gather(*map(add, eps.values())))


def test_a_cluster_is_connected_each_with_each(tmp_path: Path) -> None:
    file = tmp_path / "server.json"
    server, results = utils._run_cluster_server(str(file), 3)
    while not file.exists() or not file.read_text():
        assert server.is_alive()
    info = json.loads(file.read_text())
    utils.run_cluster_workers(info, 1, 3, 0, work, 10)
    assert [results.get(timeout=300) for _ in range(3)] == [30, 20, 10]
    server.join()
    assert server.exitcode == 0
