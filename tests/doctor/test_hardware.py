"""Findings of the doctor for hardware that this machine may not have, and for configurations."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from backhaul.doctor import Finding, State
from backhaul.doctor.devices import peer_access
from backhaul.doctor.fabric import other_hosts
from backhaul.doctor.ucx import report
from tests.doctor.test_doctor import findings, library, run

#: As a host with two InfiniBand cards answers, of which UCX can open one
ANSWER: dict[str, Any] = {
    "error": "", "carriers": ["ucx"], "version": "1.21.0", "modules": ["cma", "ib"],
    "libraries": {"libucp": "/usr/lib/libucp.so.0"},
}  # fmt: skip
TRANSPORTS = [
    ("rc_mlx5", "mlx5_0:1", "network"),
    ("ud_mlx5", "mlx5_0:1", "network"),
    ("tcp", "ib0", "network"),
    ("posix", "memory", "host"),
    ("cuda_copy", "cuda", "accelerator"),
]


def by_subject(found: Any) -> dict[str, Finding]:
    return {finding.subject: finding for finding in found}


def test_each_rdma_device_has_the_transports_that_use_it() -> None:
    found = by_subject(report(ANSWER, TRANSPORTS, ["mlx5_0", "mlx5_1"]))
    assert found["RDMA mlx5_0"].state is State.WORKS
    assert found["RDMA mlx5_0"].detail == "by rc_mlx5, ud_mlx5"
    refused = found["RDMA mlx5_1"]
    assert refused.state is State.LIMITED
    for word in ("libucx0", "ucx-ib", "RAPIDS_LIBUCX_PREFER_SYSTEM_LIBRARY=1"):
        assert word in refused.advice
    assert found["transports"].detail == (
        "cuda_copy (cuda), posix, rc_mlx5 (mlx5_0:1), tcp (ib0), ud_mlx5 (mlx5_0:1)"
    )
    assert found["lane ucx"].detail == "between hosts with RDMA; carriers ucx"


def test_a_missing_libucp_matters_where_there_is_rdma() -> None:
    answer = {**ANSWER, "libraries": {}, "error": "no libucp"}
    assert by_subject(report(answer, [], []))["libucp"] == Finding(
        "ucx", "libucp", State.ABSENT, "no libucp"
    )
    there = by_subject(report(answer, [], ["mlx5_0"]))["libucp"]
    assert there.state is State.LIMITED
    assert "install the system's UCX" in there.advice


def test_another_host_gets_ucx_only_where_ucx_can_use_the_card() -> None:
    assert other_hosts([], None).detail.startswith("lane tcp")
    assert other_hosts(["mlx5_0"], TRANSPORTS).detail.startswith("lane ucx with carrier ucx")
    for transports in (None, [], TRANSPORTS):
        finding = other_hosts(["mlx5_1"], transports)
        assert finding.state is State.LIMITED
        assert "mlx5_1" in finding.detail
        assert "doctor ucx" in finding.advice


def test_gpus_that_cannot_read_each_other_are_named() -> None:
    assert list(peer_access([])) == []
    both = [("0:7", "0:8", True), ("0:8", "0:7", True)]
    [finding] = peer_access(both)
    assert finding.state is State.WORKS
    [finding] = peer_access([*both, ("0:7", "0:9", False)])
    assert finding.state is State.LIMITED
    assert finding.detail == "not 0:7 from 0:9; 2 others may"


DRIVER = r"""
    #include <stdio.h>
    int cuDriverGetVersion(int *version) { *version = 12040; return 0; }
    int cuInit(unsigned flags) { return 0; }
    int cuDeviceGetCount(int *count) { *count = 2; return 0; }
    int cuDeviceGet(int *device, int number) { *device = number; return 0; }
    int cuDeviceGetPCIBusId(char *text, int length, int device)
    { return snprintf(text, length, "0000:0%d:00.0", device) < 0; }
    int cuDeviceCanAccessPeer(int *may, int reader, int owner) { *may = reader < owner; return 0; }
"""


def test_the_driver_is_asked_which_gpus_reach_each_other(tmp_path: Path) -> None:
    done = run("gpu", "--json", environment=library(tmp_path, "libcuda.so.1", DRIVER))
    found = findings(done)
    assert (
        found["gpu", "peer access"]["detail"] == "not 0000:01:00.0 from 0000:00:00.0; 1 others may"
    )
    # It lacks most of what the carrier needs.
    assert found["gpu", "carrier cuda"]["state"] == "broken"
    assert "older than CUDA" in found["gpu", "carrier cuda"]["detail"]
    assert (found["gpu", "RMM"]["state"] == "works") == (find_spec("rmm") is not None)


def test_the_carrier_for_memory_of_gpus_is_tried(gpu_environment: dict[str, str]) -> None:
    found = findings(run("gpu", "--json", environment=gpu_environment))
    said = found["gpu", "carrier cuda"]
    assert said["state"] in ("works", "limited")
    assert "sent and are as they were" in said["detail"] or "not used by default" in said["detail"]


@pytest.mark.skipif(find_spec("libucx") is None, reason="no wheel libucx")
def test_transports_are_those_that_ucx_has_here() -> None:
    found = findings(run("ucx", "--json"))
    listed = found["ucx", "transports"]["detail"]
    for transport in ("self", "posix", "tcp ("):
        assert transport in listed
    assert found["ucx", "lane ucx"]["detail"].endswith("carriers ucx")


def test_a_script_may_ask_for_what_it_needs() -> None:
    assert run("dask", "--strict").returncode == 0
    # Few machines have all of it; none has a broken one for that.
    switched_off = {"DASK_DISTRIBUTED__COMM__BACKHAUL__HOT_PATH__ORDER": "False"}
    assert run("dask", environment=switched_off).returncode == 0
    assert run("dask", "--strict", environment=switched_off).returncode == 3


def test_whether_there_is_a_secret_is_told_and_not_what_it_is() -> None:
    told = findings(run("dask", "--json"))["dask", "configuration"]["detail"]
    assert told.endswith("no secret: any process that connects is a peer")
    secret = "a secret of this cluster"
    asked = {"DASK_DISTRIBUTED__COMM__BACKHAUL__SECRET": secret}
    done = run("dask", "--json", environment=asked)
    assert findings(done)["dask", "configuration"]["detail"].endswith("; a secret")
    assert secret not in done.stdout + done.stderr


def test_a_configuration_that_cannot_be_is_broken_and_told() -> None:
    done = run("dask", "--json", environment={"DASK_DISTRIBUTED__COMM__UCX__TCP": "maybe"})
    assert done.returncode == 1
    assert "tcp must be true, false or null" in findings(done)["dask", "configuration"]["detail"]
    asked = {"DASK_DISTRIBUTED_UCXX__INFINIBAND": "True"}
    told = findings(run("dask", "--json", environment=asked))["dask", "configuration"]["detail"]
    assert told.startswith("lanes inproc, shm, ucx, tcp, UCX_TLS=rc,tcp; ")
