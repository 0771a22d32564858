"""Clusters with a worker for each GPU: what is refused, and a recorded machine started for real."""

from __future__ import annotations

import inspect
import os
from pathlib import Path
from typing import Any

import pytest
from distributed import Client, Worker
from distributed.utils_test import gen_test

from backhaul import BackhaulError, ConfigError
from backhaul.dask import DGX, CUDACluster, LocalCUDACluster
from backhaul.dask.launch.cuda import devices
from backhaul.dask.launch.device_memory import DeviceBytes
from backhaul.dask.launch.gpu_options import sort_gpu_options
from backhaul.topology import discover, load
from tests.dask.machines import machine_with_gpus

FIXTURES = Path(__file__).parents[2] / "crates" / "topology" / "tests" / "fixtures"

CPUS = sorted(os.sched_getaffinity(0))


@pytest.mark.skipif(len(CPUS) < 2, reason="needs two CPUs to tell workers apart")
@gen_test()
async def test_each_worker_has_a_gpu_and_the_cpus_near_it() -> None:
    async with (
        CUDACluster(
            machine=machine_with_gpus(),
            dashboard_address=None,
            asynchronous=True,
            pre_import="colorsys,wave",
        ) as cluster,
        Client(cluster, asynchronous=True) as client,
    ):

        def found(dask_worker: Worker) -> tuple[Any, ...]:
            import sys

            return (
                dask_worker.name,
                os.environ["CUDA_VISIBLE_DEVICES"],
                os.sched_getaffinity(0),
                dict(dask_worker.state.total_resources),
                dask_worker.state.nthreads,
                {"colorsys", "wave"} <= set(sys.modules),
            )

        answers: Any = await client.run(found)
        assert sorted(answers.values()) == [
            ("gpu0", "GPU-0,GPU-1", {CPUS[0]}, {"GPU": 1}, 1, True),
            ("gpu1", "GPU-1,GPU-0", {CPUS[1]}, {"GPU": 1}, 1, True),
        ]
        assert await client.submit(sum, [1, 2], resources={"GPU": 1}) == 3


@gen_test()
async def test_gpus_can_be_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {
        "machine": machine_with_gpus(), "dashboard_address": None, "asynchronous": True,
    }  # fmt: skip
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-1")
    async with CUDACluster(**options) as cluster:
        assert list(cluster.worker_spec) == ["gpu1"]
    # By the name and the order that dask-cuda has; without a limit no driver is asked
    async with LocalCUDACluster([0], 1, 1, "auto", None, **options) as cluster:
        assert list(cluster.worker_spec) == ["gpu0"]
        with pytest.raises(ConfigError, match="2 workers are more than the 1"):
            cluster.scale(2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    async with CUDACluster(n_workers=1, **options) as cluster:
        assert list(cluster.worker_spec) == ["gpu0"]
    with pytest.raises(BackhaulError, match="GPU"):
        CUDACluster("7", **options)


@pytest.mark.skipif(bool(discover().gpus), reason="this machine has a GPU")
def test_without_a_gpu_the_error_says_what_was_searched() -> None:
    with pytest.raises(ConfigError, match=r"no GPU on '.*' \(looked at .*sysfs"):
        CUDACluster()


def test_a_dgx_elsewhere_is_not_started_here() -> None:
    table = FIXTURES / "dgx-1.nvidia-smi.txt"
    with pytest.raises(ConfigError, match="worker 'gpu0' shall listen on network interface 'ib0'"):
        DGX(machine=table)
    plan = load(table).plan("per-gpu")
    if len(CPUS) < 80:
        with pytest.raises(ConfigError, match="'gpu0' cannot be pinned to CPUs 0-19,40-59"):
            CUDACluster(plan=plan)


def test_dgx_has_the_signature_that_it_had() -> None:
    parameters = inspect.signature(DGX).parameters
    assert {name: each.default for name, each in parameters.items() if name != "kwargs"} == {
        "interface": "ib",
        "dashboard_address": ":8787",
        "threads_per_worker": 1,
        "silence_logs": True,
        "CUDA_VISIBLE_DEVICES": None,
    }
    assert parameters["kwargs"].kind is inspect.Parameter.VAR_KEYWORD


#: Of dask-cuda 26.10, in its order; ``local_directory`` and ``protocol`` are Dask's own
DEFAULTS_OF_DASK_CUDA: dict[str, Any] = {
    "CUDA_VISIBLE_DEVICES": None, "n_workers": None, "threads_per_worker": 1,
    "memory_limit": "auto", "device_memory_limit": "default", "enable_cudf_spill": False,
    "cudf_spill_stats": 0, "enable_tcp_over_ucx": None, "enable_infiniband": None,
    "enable_nvlink": None, "enable_rdmacm": None, "rmm_pool_size": None,
    "rmm_maximum_pool_size": None, "rmm_managed_memory": False, "rmm_async": False,
    "rmm_allocator_external_lib_list": None, "rmm_release_threshold": None,
    "rmm_log_directory": None, "rmm_track_allocations": False, "log_spilling": False,
    "pre_import": None,
}  # fmt: skip


def test_defaults_are_those_of_dask_cuda() -> None:
    parameters = inspect.signature(LocalCUDACluster).parameters
    ours = {name: each.default for name, each in parameters.items() if name != "options"}
    assert list(ours.items()) == list(DEFAULTS_OF_DASK_CUDA.items())[: len(ours)]
    of_gpus = dict(list(DEFAULTS_OF_DASK_CUDA.items())[4:])
    found, others = sort_gpu_options(of_gpus)
    assert not others
    assert found.device_limit == DeviceBytes("device_memory_limit", 0.8)
    assert not found.plugins
    without, _ = sort_gpu_options({})
    assert without.device_limit is None


def test_gpus_are_read_as_cuda_writes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert devices(None) is None
    assert devices("0, 2") == [0, 2]
    assert devices(3) == [3]
    assert devices([1, "GPU-abc", "MIG-1"]) == [1, "GPU-abc", "MIG-1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")
    assert devices(None) == [4, 5]
    for wrong, message in (("0,0", "twice"), ("x", "neither"), ("0,-1", "'-1' is neither")):
        with pytest.raises(ConfigError, match=message):
            devices(wrong)
