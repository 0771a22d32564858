"""Keys that programs for UCX set: their effect on Backhaul, and the options that UCX gets."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import dask
from backhaul import ConfigError
from backhaul.dask import Settings
from backhaul.dask.config import ucx_options
from backhaul.dask.config.ucx_options import ROOTS, rmm_pool_size

WITH_UCX = ("inproc", "shm", "ucx", "tcp")
WITHOUT_UCX = ("inproc", "shm", "tcp")
OLD, NEW = "distributed.comm.ucx", "distributed-ucxx"

#: What Dask 2021.9 had as defaults, and files of users have kept
NOTHING_ASKED = {
    "cuda_copy": False, "tcp": False, "nvlink": False, "infiniband": False, "rdmacm": False,
    "net-devices": None, "reuse-endpoints": None,
}  # fmt: skip


@pytest.fixture(autouse=True)
def nothing_said_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ucx_options, "_said", set())
    for name in [name for name in os.environ if name.startswith("UCX_")]:
        monkeypatch.delenv(name)


def outcome(keys: dict[str, Any], root: str = NEW, **others: Any) -> tuple[Any, dict[str, str]]:
    """Read the settings; gives lanes and variables."""
    with dask.config.set({root: keys, **others}):
        settings = Settings.current()
    return dict(settings.native).get("lanes"), dict(settings.ucx)


@pytest.mark.parametrize("root", ROOTS)
@pytest.mark.parametrize(
    ("keys", "lanes", "variables"),
    [
        ({}, None, {}),
        (NOTHING_ASKED, None, {}),
        ({"tcp": True}, WITHOUT_UCX, {"UCX_TLS": "tcp"}),
        ({"nvlink": True}, WITHOUT_UCX, {"UCX_TLS": "tcp"}),
        ({"infiniband": True}, WITH_UCX, {"UCX_TLS": "rc,tcp"}),
        ({"infiniband": True, "nvlink": True}, WITH_UCX, {"UCX_TLS": "rc,tcp"}),
        ({"infiniband": True, "rdmacm": True}, WITH_UCX, {"UCX_TLS": "rc,tcp"}),
        ({"cuda-copy": True, "create-cuda-context": True}, None, {}),
        ({"net-devices": "mlx5_0:1"}, None, {"UCX_NET_DEVICES": "mlx5_0:1"}),
        ({"net-devices": "auto"}, None, {}),
        (
            {"environment": {"tls": "rc", "tcp-tx-seg-size": 8192, "MEMTYPE_CACHE": False}},
            None,
            {"UCX_TLS": "rc", "UCX_TCP_TX_SEG_SIZE": "8192", "UCX_MEMTYPE_CACHE": "n"},
        ),
        (
            {"infiniband": True, "environment": {"tls": "rc,tcp"}},
            WITH_UCX,
            {"UCX_TLS": "rc,tcp"},
        ),
    ],
)
def test_each_key_has_its_meaning(
    root: str, keys: dict[str, Any], lanes: Any, variables: dict[str, str]
) -> None:
    assert outcome(keys, root) == (lanes, variables)
    # An environment variable, or an old file, has underscores.
    underscored = {key.replace("-", "_"): value for key, value in keys.items()}
    assert outcome(underscored, root) == (lanes, variables)


def test_the_newer_names_go_before_the_older_ones() -> None:
    assert outcome({"infiniband": True}, NEW, **{OLD: {"infiniband": False}})[0] == WITH_UCX
    assert outcome({"infiniband": None}, NEW, **{OLD: {"infiniband": True}})[0] == WITH_UCX


def test_lanes_that_are_chosen_stay() -> None:
    lanes: dict[str, Any] = {"distributed.comm.backhaul.lanes": ["shm", "ucx"]}
    assert outcome({"tcp": True}, **lanes) == (("shm", "ucx"), {"UCX_TLS": "tcp"})
    assert outcome({"infiniband": True}, **lanes) == (("shm", "ucx"), {"UCX_TLS": "rc,tcp"})


def test_variables_of_the_environment_go_before_keys(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("UCX_TLS", "posix")
    with caplog.at_level(logging.INFO, "backhaul.dask"):
        assert outcome({"infiniband": True}) == (WITH_UCX, {})
    assert "distributed-ucxx.infiniband=True" in caplog.text
    assert "UCX_TLS=posix of the environment" in caplog.text


@pytest.mark.parametrize(
    ("keys", "others", "message"),
    [
        ({"tcp": "yes"}, {}, r"distributed-ucxx\.tcp must be true, false or null, got 'yes'"),
        ({"multi_buffer": 1}, {}, r"distributed-ucxx\.multi-buffer must be true.* got 1"),
        ({"net-devices": 3}, {}, r"net-devices must be a text like 'mlx5_0:1', got 3"),
        ("rc", {}, r"distributed-ucxx must have keys like 'infiniband', got 'rc'"),
        ({"environment": "TLS=rc"}, {}, r"environment must have names and .* got 'TLS=rc'"),
        ({"environment": {"tls": ["rc"]}}, {}, r"environment\.tls must be a text.* \['rc'\]"),
        ({"environment": {"UCX_TLS": "rc"}}, {}, r"environment\.UCX_TLS: leave UCX_ out"),
        (
            {"rdmacm": True, "infiniband": False},
            {},
            r"ucxx\.rdmacm=True contradicts distributed-ucxx\.infiniband=False",
        ),
        (
            {"infiniband": True, "environment": {"tls": "tcp"}},
            {},
            r"environment\.tls='tcp' contradicts .*infiniband=True, which means UCX_TLS=rc,tcp",
        ),
        (
            {"infiniband": True},
            {"distributed.comm.backhaul.lanes": ["shm", "tcp"]},
            r"infiniband=True contradicts distributed\.comm\.backhaul\.lanes=\['shm', 'tcp'\]",
        ),
    ],
)
def test_an_impossible_value_is_refused_with_key_and_value(
    keys: Any, others: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        outcome(keys, **others)


def test_a_key_without_meaning_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    keys = {"nvlink": True, "multi-buffer": True, "infinband": True, "reuse-endpoints": False}
    with caplog.at_level(logging.INFO, "backhaul.dask"):
        for _ in range(3):
            outcome(keys, OLD, **{"distributed.rmm.pool-size": "1GB"})
    [record] = caplog.records
    assert record.levelno == logging.INFO
    said = record.getMessage()
    for key in ("nvlink=True", "multi-buffer=True", "infinband=True"):
        assert f"distributed.comm.ucx.{key} (" in said
    assert "distributed.rmm.pool-size='1GB' (" in said
    # False is what is done.
    assert "reuse-endpoints" not in said


def test_the_size_of_the_pool_is_found_under_both_names() -> None:
    assert rmm_pool_size() is None
    with dask.config.set({"distributed.rmm.pool-size": "1GB"}):
        assert rmm_pool_size() == "1GB"
        with dask.config.set({"distributed-ucxx.rmm.pool-size": "2GB"}):
            assert rmm_pool_size() == "2GB"


ECHO = """
import asyncio, os
from distributed.comm import connect, listen

async def main():
    async def echo(comm):
        await comm.write(await comm.read())
        await comm.close()
    async with listen("backhaul://127.0.0.1", echo) as listener:
        comm = await connect(listener.contact_address)
        await comm.write({"x": 1})
        print(await comm.read(), comm.lane)
        await comm.close()
    print(*sorted(name for name in os.environ if name.startswith("UCX_")))

asyncio.run(main())
"""


@pytest.mark.skipif(find_spec("libucx") is None, reason="no wheel libucx")
@pytest.mark.parametrize("root", ["DASK_DISTRIBUTED__COMM__UCX", "DASK_DISTRIBUTED_UCXX"])
def test_ucx_gets_keys_that_variables_of_dask_have_set(root: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ECHO],
        env={
            **os.environ,
            "DASK_DISTRIBUTED__COMM__BACKHAUL__LANES": "ucx",
            f"{root}__TCP": "True",
            # UCX then lists the variables that it has found.
            f"{root}__ENVIRONMENT__LOG_LEVEL": "info",
        },
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    [found] = [line for line in done.stdout.splitlines() if "env variables:" in line]
    assert {"UCX_TLS=tcp", "UCX_LOG_LEVEL=info"} <= set(found.split())
    # None is left to processes that are started from here. UCX may add a line at the end.
    said = done.stdout.splitlines()
    assert said[said.index("{'x': 1} ucx") + 1] == ""


def test_a_file_from_before_2021_still_counts(tmp_path: Path) -> None:
    (tmp_path / "distributed.yaml").write_text("ucx: {infiniband: true, cuda_copy: true}")
    done = subprocess.run(
        [
            *(sys.executable, "-c"),
            "import distributed; from backhaul.dask import Settings\n"
            "print(dict(Settings.current().native)['lanes'], dict(Settings.current().ucx))",
        ],
        env={**os.environ, "DASK_CONFIG": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.stdout.strip() == f"{WITH_UCX} {{'UCX_TLS': 'rc,tcp'}}", done.stderr
