"""What the command accepts, and what it says of the rest."""

from __future__ import annotations

import signal

import pytest
from click.testing import CliRunner

from backhaul.bench.contenders import peer_names
from backhaul.bench.p2p import stream_window
from backhaul.cli import main


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
