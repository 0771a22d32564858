"""Options: ``UCX_*`` variables, `init`, and what they mean for the lanes."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

import backhaul.ucp as ucp
from backhaul.ucp._config import current_options, settings_of
from backhaul.ucp.exceptions import UCXConfigError, UCXError, UCXUnreachable

if TYPE_CHECKING:
    from tests.ucp.conftest import Connected


@pytest.mark.parametrize(
    ("tls", "lanes"),
    [
        ("all", ("inproc", "shm", "tcp")),
        ("tcp", ("tcp",)),
        ("sm", ("inproc", "shm")),
        ("posix,tcp", ("inproc", "shm", "tcp")),
        ("self", ("inproc",)),
        ("rc,cuda_copy,cuda_ipc", ("tcp",)),
        ("tcp,sockcm,cuda_copy", ("tcp",)),
        ("^tcp", ("inproc", "shm")),
        ("^sm", ("tcp",)),
        ("\\tcp, cma", ("inproc", "shm", "tcp")),
        ("ud:aux,tcp", ("tcp",)),
    ],
)
def test_transports_are_mapped_to_lanes(tls: str, lanes: tuple[str, ...]) -> None:
    assert settings_of(current_options({"TLS": tls})).lanes == lanes


def test_a_transport_that_is_not_known_is_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    assert settings_of(current_options({"TLS": "tcp,quic"})).lanes == ("tcp",)
    assert "'quic'" in caplog.text


@pytest.mark.parametrize(
    "options",
    [
        {"TLS": "cuda_copy"},
        {"TLS": ""},
        {"TLS": "^all"},
        {"SEG_SIZE": "invalid-size"},
        {"RNDV_THRESH": "-1"},
        {"KEEPALIVE_INTERVAL": "soon"},
        {"TLS": 3},
    ],
)
def test_what_cannot_be_used_is_refused_by_name_and_value(options: dict[str, str]) -> None:
    ((name, value),) = options.items()
    with pytest.raises(UCXConfigError) as caught:
        ucp.init(options)
    assert name in str(caught.value)
    assert str(value) in str(caught.value)
    ucp.init()


def test_options_and_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ucp.get_config()["TLS"] == "all"
    monkeypatch.setenv("UCX_RNDV_THRESH", "2M")
    monkeypatch.setenv("UCX_SOMETHING_ELSE", "kept")
    assert ucp.get_config()["RNDV_THRESH"] == "2M"
    options = {"RNDV_THRESH": "3K"}
    for precedes, expected in ((False, "3K"), (True, "2M")):
        ucp.init(options, env_takes_precedence=precedes)
        assert ucp.get_config()["RNDV_THRESH"] == expected
        assert ucp.get_config()["SOMETHING_ELSE"] == "kept"
        assert options == {"RNDV_THRESH": "3K"}
        ucp.reset()


@pytest.mark.parametrize(
    ("threshold", "nbytes"),
    [("1", 1), ("4k", 4096), ("inf", 65536), ("9" * 400, 65536), ("intra:2K,inter:1K", 1024)],
    ids=lambda value: str(value)[:9],
)
def test_a_threshold_is_a_size(threshold: str, nbytes: int) -> None:
    settings = settings_of(current_options({"RNDV_THRESH": threshold, "KEEPALIVE_INTERVAL": "9ms"}))
    assert settings.inline_bytes_max == nbytes
    assert settings.keep_alive_interval_s == pytest.approx(0.009)


@pytest.mark.parametrize("timeout_s", [0, -1, float("nan"), "soon"])
def test_a_timeout_is_positive(timeout_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UCXConfigError, match="connect_timeout"):
        ucp.init(connect_timeout=timeout_s)
    monkeypatch.setenv("UCXPY_CONNECT_TIMEOUT", str(timeout_s))
    with pytest.raises(UCXConfigError, match=str(timeout_s)):
        ucp.init()


@pytest.mark.asyncio
async def test_only_lanes_that_were_asked_for_are_used(
    transport: str, connected: Connected
) -> None:
    assert ucp.get_active_transports() == (
        {"self", "posix"} if transport == "posix" else {transport}
    )
    assert transport in ucp.get_ucp_context_info()
    async with connected() as (a, b):
        assert a.lane == b.lane == {"self": "inproc", "posix": "inproc", "tcp": "tcp"}[transport]
        assert a.lane in a.ucx_info()
        assert a.lane in ucp.get_ucp_worker_info()


@pytest.mark.asyncio
async def test_a_peer_that_only_other_lanes_reach_is_unreachable() -> None:
    code = (
        "import asyncio, sys, backhaul.ucp as ucp\n"
        "try: asyncio.run(ucp.create_endpoint('127.0.0.1', int(sys.argv[1])))\n"
        "except ucp.exceptions.UCXUnreachable as error: print(error)\n"
    )
    ucp.init({"TLS": "tcp"})
    peers: list[ucp.Endpoint] = []
    listener = ucp.create_listener(peers.append)
    run = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", code, str(listener.port)],
        env={"UCX_TLS": "posix"},
        capture_output=True,
        text=True,
    )
    assert "UCX_TLS=posix" in run.stdout, run.stderr
    assert not peers
    listener.close()


def test_the_log_tells_the_options(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="ucx"):
        ucp.init({"SEG_SIZE": "3M"})
    assert "SEG_SIZE: 3M" in caplog.text


def test_addresses_of_interfaces(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ucp.get_address("lo") == ucp.get_address(ifname="lo") == "127.0.0.1"
    with pytest.raises(OSError, match="nosuch0"):
        ucp.get_address("nosuch0")
    monkeypatch.setenv("UCXPY_IFNAME", "lo")
    assert ucp.get_address() == "127.0.0.1"
    ucp.init({"NET_DEVICES": "lo"})
    assert ucp.get_worker_address().place().addresses[0].startswith("127.0.0.1:")


def test_errors_are_of_ucx_pys_tree() -> None:
    from backhaul.ucp import exceptions
    from backhaul.ucp._libs import exceptions as low

    assert issubclass(UCXConfigError, UCXError)
    assert not issubclass(UCXUnreachable, UCXError)
    for name in low.__all__:
        assert getattr(low, name) is getattr(exceptions, name)
    with exceptions.log_errors():
        raise ValueError("logged")
    with pytest.raises(ValueError, match="raised"), exceptions.log_errors(reraise_exception=True):
        raise ValueError("raised")
