"""A cluster of Dask on the GPUs of this machine, as users start one: `make gpu-test`.

Skipped without a GPU, and without CuPy.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
from distributed import Client, Worker

from backhaul.dask import CUDACluster
from tests.gpu.test_libraries import pytestmark as pytestmark

cupy = pytest.importorskip("cupy")

MIB = 1 << 20


def _made(number: int) -> Any:
    return cupy.full(4 * MIB // 8, float(number))


def _total(arrays: list[Any]) -> float:
    return float(sum(array.sum() for array in arrays))


def test_each_gpu_has_a_worker_that_computes_on_it() -> None:
    count = cupy.cuda.runtime.getDeviceCount()

    def found(dask_worker: Worker) -> tuple[int, Any, float]:
        visible = len(os.environ["CUDA_VISIBLE_DEVICES"].split(","))
        return visible, dask_worker.state.total_resources["GPU"], dask_worker.state.nthreads

    with CUDACluster(dashboard_address=None) as cluster, Client(cluster) as client:
        answers = client.run(found).values()
        assert sorted(answers) == [(count, 1, 1)] * count
        made = client.map(_made, range(8), resources={"GPU": 1})
        assert client.submit(_total, made).result(timeout=120) == 4 * MIB // 8 * sum(range(8))
        # And here, on the first GPU of this process.
        array = client.gather(made[3])
        assert isinstance(array, cupy.ndarray)
        assert float(array.max()) == float(array.min()) == 3


def test_results_past_a_limit_of_the_gpu_move_to_the_host_and_back() -> None:
    def found(dask_worker: Worker) -> tuple[str, int, int]:
        data: Any = dask_worker.data
        on_host = [type(value).__name__ for value in data._host.memory.values()]
        return type(data).__name__, data.device_bytes, on_host.count("OnHost")

    with (
        CUDACluster(
            CUDA_VISIBLE_DEVICES="0", dashboard_address=None, device_memory_limit=10 * MIB
        ) as cluster,
        Client(cluster) as client,
    ):
        made = client.map(_made, range(8))
        assert client.submit(_total, made).result(timeout=120) == 4 * MIB // 8 * sum(range(8))
        [answer] = client.run(found).values()
        assert answer == ("DeviceSpill", 8 * MIB, 6)


def test_workers_have_a_pool_of_the_size_that_was_asked_for() -> None:
    rmm = pytest.importorskip("rmm")

    def found(dask_worker: Worker) -> tuple[str, bool]:
        pool: Any = rmm.mr.get_current_device_resource()
        free, total = cupy.cuda.runtime.memGetInfo()
        return type(pool).__name__, total - free >= 256 * MIB

    with (
        CUDACluster(
            CUDA_VISIBLE_DEVICES="0", dashboard_address=None, rmm_pool_size=256 * MIB
        ) as cluster,
        Client(cluster) as client,
    ):
        [(name, is_taken)] = client.run(found).values()
        assert "Pool" in name
        assert is_taken
