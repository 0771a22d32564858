"""Displays of a cluster for users: its doctor, versions, transfers, and its notebook view."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from distributed import Client

import backhaul
from backhaul.dask import LocalCluster, transfers
from backhaul.doctor import State, cluster, examine


def doctor(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "backhaul.cli", "doctor", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


@pytest.fixture(scope="module")
def planned() -> Iterator[LocalCluster]:
    with LocalCluster(
        n_workers=1, threads_per_worker=1, dashboard_address=None, overcommit=True
    ) as planned:
        planned.scale(2)
        with Client(planned) as client:
            client.wait_for_workers(2)
        yield planned


def test_the_doctor_tells_versions_protocols_and_lanes_of_a_cluster(planned: LocalCluster) -> None:
    address = planned.tcp_address
    assert address is not None
    # A process of its own, in which nothing has used Backhaul in Dask yet
    done = doctor(address)
    assert done.returncode == 0, done.stdout
    text = " ".join(done.stdout.split())
    assert f"{address}: works, 2 workers, 2 threads" in text
    assert f"backhaul: works, {backhaul.__version__} in 4 processes" in text
    assert "workers speak: works, backhaul:// 2" in text
    assert "connections: works, not encrypted; any process here may connect" in text
    assert "lane shm: works, 2 connections between workers: " in text


@pytest.mark.parametrize("scheme", ["tcp", "backhaul"])
def test_a_scheduler_that_is_not_there_is_one_finding(scheme: str) -> None:
    done = doctor(f"{scheme}://127.0.0.1:1", "--json")
    assert done.returncode == 1, done.stdout
    (finding,) = json.loads(done.stdout)["findings"]
    assert finding["state"] == "broken"
    assert finding["subject"] == f"{scheme}://127.0.0.1:1"
    assert finding["detail"].startswith("not reached: ")
    assert "Connection refused" in finding["detail"]


def test_a_port_that_says_nothing_is_one_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "TIMEOUT_S", 1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        (finding,) = examine([f"tcp://127.0.0.1:{silent.getsockname()[1]}"])
    assert finding.state is State.BROKEN
    assert finding.detail == "not reached: no scheduler answers there within 1 s"


def test_versions_list_backhaul_in_every_process(planned: LocalCluster) -> None:
    with Client(planned) as client:
        versions: Any = client.get_versions()
        found = [versions["client"], versions["scheduler"], *versions["workers"].values()]
        assert len(found) == 4
        assert {each["packages"]["backhaul"] for each in found} == {backhaul.__version__}


def test_a_scheduler_is_called_by_the_address_that_its_lane_is_of(planned: LocalCluster) -> None:
    assert planned.tcp_address is not None
    with Client(planned.tcp_address) as client:
        frame: Any = transfers(client)
        assert planned.scheduler_address.startswith("backhaul://")
        assert planned.scheduler_address in {*frame.receiver, *frame.sender}
        assert not any(each.startswith("tcp://") for each in {*frame.receiver, *frame.sender})


def test_a_notebook_shows_the_results_of_each_worker(planned: LocalCluster) -> None:
    shown = planned._repr_html_()
    assert "Plan of the workers" in shown
    assert planned.scheduler_address in shown
