"""Results on a GPU past a limit: they move to the host, to disk, and back, and stay the same.

Device objects are arrays on the host here that look like arrays on a GPU.
"""

from __future__ import annotations

import logging
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pytest
from distributed import Client, Worker
from distributed.utils_test import gen_test

import dask
from backhaul.dask import CUDACluster
from backhaul.dask.launch.device_memory import DeviceBytes
from backhaul.dask.launch.device_spill import DeviceSpill, OnHost, is_on_device
from tests.dask.machines import machine_with_gpus

#: A module that workers import: arrays that Dask takes for those of a GPU.
ON_DEVICE = """
import numpy as np
from distributed.protocol import dask_deserialize, dask_serialize


class OnDevice:
    def __init__(self, array):
        self.array = array

    @property
    def __cuda_array_interface__(self):
        return self.array.__array_interface__

    @property
    def nbytes(self):
        return self.array.nbytes


@dask_serialize.register(OnDevice)
def to_frames(value):
    return {"dtype": value.array.dtype.str}, [value.array.data]


@dask_deserialize.register(OnDevice)
def from_frames(header, frames):
    return OnDevice(np.frombuffer(frames[0], header["dtype"]))


def full(number):
    return OnDevice(np.full(1000, float(number)))


def total(values):
    return sum(value.array.sum() for value in values)
"""

Make: TypeAlias = Callable[..., DeviceSpill]


@pytest.fixture
def device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make the module known to this process, and to those that it starts."""
    (tmp_path / "on_device_here.py").write_text(ON_DEVICE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    import importlib

    return importlib.import_module("on_device_here")


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Make mappings with room for two of the arrays on the GPU."""

    def make_one(memory_limit: Any = None, **options: Any) -> DeviceSpill:
        return DeviceSpill(
            str(tmp_path),
            device_limit=DeviceBytes("limit", 20_000),
            memory_limit=memory_limit,
            nthreads=1,
            **options,
        )

    return make_one


def array_of(value: Any) -> npt.NDArray[np.float64]:
    found: npt.NDArray[np.float64] = value.array
    return found


def test_the_least_recently_used_result_moves_to_the_host_and_back(device: Any, make: Make) -> None:
    data = make()
    for number in range(4):
        data["device", number] = device.full(number)
        data["host", number] = number
    assert data.device_bytes == 16_000
    assert len(data) == len(set(data)) == 8
    for _ in range(2):
        for number in range(4):
            assert np.array_equal(array_of(data["device", number]), np.full(1000, float(number)))
            assert data["host", number] == number
            assert data.device_bytes <= data.device_bytes_max == 20_000
    assert list(data._device.fast) == [("device", 2), ("device", 3)]
    data["device", 3] = device.full(7)
    data["device", 2] = "no array any more"
    assert array_of(data["device", 3])[0] == 7
    assert data["device", 2] == "no array any more"
    assert data.device_bytes == 8000
    for key in list(data):
        assert key in data
        del data[key]
        assert key not in data
    assert (len(data), data.device_bytes) == (0, 0)
    with pytest.raises(KeyError):
        data["device", 0]


def test_an_array_larger_than_the_limit_is_kept_on_the_host(device: Any, make: Make) -> None:
    data = make()
    data["large"] = device.OnDevice(np.arange(10_000.0))
    assert data.device_bytes == 0
    assert array_of(data["large"])[9999] == 9999
    assert data.device_bytes == 0


def test_past_the_limit_of_the_host_it_goes_to_disk_and_comes_back(device: Any, make: Make) -> None:
    with dask.config.set({"distributed.worker.memory.target": 0.5}):
        data = make(memory_limit=40_000)
    for number in range(8):
        data[number] = device.full(number)
    memory, disk = data.spilled_total
    # Two are on the GPU, two on the host, which has room for 20 kB.
    assert memory >= 32_000
    assert disk >= 32_000
    for number in range(8):
        assert np.array_equal(array_of(data[number]), np.full(1000, float(number)))
    # What Dask's memory monitor does
    while data.fast:
        assert data.evict() > 8000
    assert data.spilled_total[0] >= 48_000
    assert [array_of(data[number])[0] for number in range(8)] == list(range(8))


def test_a_worker_without_a_limit_writes_nothing_to_disk(device: Any, make: Make) -> None:
    data = make(memory_limit=None)
    for number in range(4):
        data[number] = device.full(number)
    assert not data.fast
    assert data.evict() == -1
    assert data.spilled_total == (0, 0)


def test_moves_are_logged_if_that_is_asked_for(
    device: Any, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    for log, expected in (
        (False, []),
        (
            True,
            ["Moved result 0, 8000 bytes, to the host", "Moved result 0, 8000 bytes, to the GPU"],
        ),
    ):
        data = make(log=log)
        with caplog.at_level(logging.INFO, "distributed.worker"):
            for number in range(3):
                data[number] = device.full(number)
            _ = data[0]
        assert [text for text in caplog.messages if "result 0" in text] == expected
        caplog.clear()


@pytest.mark.parametrize("protocol", [4, 5])
def test_a_result_on_the_host_can_be_pickled(protocol: int) -> None:
    kept = OnHost({"a": 1}, [np.arange(3.0).data, b"bytes", bytearray(b"more")])
    again = pickle.loads(pickle.dumps(kept, protocol))
    assert again.header == {"a": 1}
    assert [bytes(frame) for frame in again.frames] == [bytes(frame) for frame in kept.frames]


def test_arrays_are_found_in_collections(device: Any) -> None:
    one = device.full(1)
    for value in (one, [1, one], {"a": (one,)}, [[{"b": one}]]):
        assert is_on_device(value)
    for other in (1, "text", np.ones(3), [np.ones(3)], {}, object()):
        assert not is_on_device(other)


@gen_test()
async def test_a_worker_keeps_its_gpu_below_the_limit(device: Any) -> None:
    async with (
        CUDACluster(
            machine=machine_with_gpus(1),
            dashboard_address=None,
            asynchronous=True,
            device_memory_limit="20kB",
            # Far above what the process itself takes, or Dask writes to disk what came to the host.
            memory_limit="4GB",
            pre_import="on_device_here",
        ) as cluster,
        Client(cluster, asynchronous=True) as client,
    ):
        made = client.map(device.full, range(8))
        assert await client.submit(device.total, made) == 1000 * sum(range(8))

        def found(dask_worker: Worker) -> tuple[Any, ...]:
            data: Any = dask_worker.data
            on_host = [type(value).__name__ for value in data._host.memory.values()]
            return (
                type(data).__name__, data.device_bytes, data.device_bytes_max,
                on_host.count("OnHost"), len(data),
            )  # fmt: skip

        [answer] = (await client.run(found)).values()
        assert answer == ("DeviceSpill", 16_000, 20_000, 6, 9)
        # Results that moved to the host are sent to a client from the GPU, as all others.
        gathered: Any = await client.gather(made)
        assert [array_of(value)[0] for value in gathered] == list(range(8))
