"""Options that the command accepts, and its errors for others."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from backhaul.cli import main
from backhaul_bench.contenders import peer_names
from backhaul_bench.p2p import stream_window


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--sizes", "8,big"], "'big' is not a size"),
        (["--sizes", "0"], "at least 1 byte"),
        (["--api", "await"], "'await' is not one of: async, blocking, both"),
        (["--lane", "rdma"], "'rdma' is not one of: auto, shm, ucx, tcp, inproc"),
        (["--against", "asyncio,zeromq"], "'zeromq' is not one of: asyncio, mpi4py"),
        (["--rounds", "0"], "0 is not in the range"),
    ],
)
def test_a_bad_option_is_named_with_what_is_allowed(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(main, ["bench", "p2p", *arguments])
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())


def test_a_job_without_protocols_is_refused() -> None:
    result = CliRunner().invoke(main, ["bench", "transpose-sum", "--protocols", ","])
    assert result.exit_code == 2


def test_every_peer_of_the_design_is_known() -> None:
    expected = {"asyncio", "socket", "tornado", "uvloop", "ucp", "ucxx", "mpi4py", "ucx_perftest"}
    assert set(peer_names()) == expected


@pytest.mark.parametrize(
    ("nbytes", "window"), [(8, 16), (1 << 19, 16), (1 << 20, 8), (1 << 24, 2), (1 << 30, 2)]
)
def test_the_window_is_bounded_in_messages_and_bytes(nbytes: int, window: int) -> None:
    assert stream_window(nbytes) == window


def test_the_command_leaves_the_signal_handlers_of_its_caller() -> None:
    before = signal.getsignal(signal.SIGTERM)
    CliRunner().invoke(main, ["bench", "p2p", "--rounds", "0"])
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--interval", "0"], "0.0 is not in the range"),
        (["--protocol", "smoke"], "Dask knows no protocol 'smoke'"),
    ],
)
def test_a_bad_option_of_memory_is_named(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(main, ["bench", "memory", *arguments])
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())


#: Names of installed modules, but for Dask
WITHOUT_DASK = """
import sys
from importlib.machinery import PathFinder

found = PathFinder.find_spec
PathFinder.find_spec = lambda name, *more: (
    None if name in ("dask", "distributed") else found(name, *more)
)
from backhaul.cli import main

main(["bench", *sys.argv[1:]])
"""


@pytest.mark.parametrize(
    "command", ["memory", "placement", "random-array", "tasks", "transpose-sum"]
)
def test_without_the_extra_a_benchmark_names_it_in_one_line(command: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_DASK, command],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stderr == (
        "Error: distributed is missing; install it with: pip install 'backhaul[dask]'\n"
    )


def test_the_picture_of_a_placement_is_svg_by_name_too(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["bench", "placement", "--plot", str(tmp_path / "p.png")])
    assert done.exit_code == 2, done.output
    assert "p.png' does not end in .svg" in done.output
