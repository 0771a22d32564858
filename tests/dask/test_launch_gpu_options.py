"""Options of dask-cuda: refusals before anything starts, and options that workers get."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from distributed import Client, Worker
from distributed.utils_test import gen_test

import dask
from backhaul import ConfigError
from backhaul.dask import CUDACluster
from backhaul.dask.launch.command import main
from backhaul.dask.launch.device_memory import DeviceBytes, device_bytes
from backhaul.dask.launch.device_pools import PoolOptions
from backhaul.dask.launch.gpu_options import sort_gpu_options
from backhaul.dask.launch.worker_specs import WorkerOptions
from backhaul.topology import discover
from tests.dask.machines import machine_with_gpus

without_rmm = pytest.mark.skipif(find_spec("rmm") is not None, reason="RMM is installed")

GIB = 1 << 30


@pytest.mark.parametrize(
    ("value", "amount"),
    [
        (None, None), (0, None), (0.0, None), ("0", None), ("0 MiB", None), ("0.0", None),
        (1, 1), ("1", 1), (1.0, 1.0), ("1.0", 1.0), (0.8, 0.8), ("0.8", 0.8), ("5GB", 5 * 10**9),
        ("5000M", 5 * 10**9), ("1.5GiB", 3 * GIB // 2), (10**9, 10**9), (2e9, 2 * 10**9),
    ],
)  # fmt: skip
def test_amounts_are_bytes_fractions_or_sizes(value: Any, amount: Any) -> None:
    found = device_bytes("option", value)
    assert (found and (found.amount, type(found.amount))) == (amount and (amount, type(amount)))


@pytest.mark.parametrize("value", [True, -1, -0.5, 1.5, "1.5", "much", "nan", float("inf"), [1]])
def test_an_invalid_amount_is_refused_with_its_value(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"^rmm_pool_size must be a size") as caught:
        CUDACluster(rmm_pool_size=value)
    assert repr(value) in str(caught.value)


def test_a_fraction_is_of_the_gpu_and_rounded_down_to_a_unit_of_rmm() -> None:
    assert DeviceBytes("option", 0.5).within(10_001) == 5000
    assert DeviceBytes("option", 0.5).within(10_001, unit_bytes=256) == 4864
    assert DeviceBytes("option", 1000).within(0, unit_bytes=256) == 768


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rmm_managed_memory": True, "rmm_async": True}, "rmm_managed_memory=True and rmm_async"),
        ({"rmm_release_threshold": "1GB"}, "rmm_release_threshold=1000000000 needs rmm_async"),
        ({"rmm_maximum_pool_size": 0.5}, "rmm_maximum_pool_size=0.5 needs rmm_pool_size"),
        (
            {"rmm_pool_size": "2GB", "rmm_maximum_pool_size": "1GB"},
            "rmm_pool_size=2000000000 is more than rmm_maximum_pool_size=1000000000",
        ),
        ({"rmm_log_directory": "/"}, "rmm_log_directory='/' logs nothing without"),
        (
            {"rmm_log_directory": "/nowhere", "rmm_async": True},
            "rmm_log_directory must be a directory that is there, got '/nowhere'",
        ),
        ({"rmm_async": "yes"}, "rmm_async must be True or False, got 'yes'"),
        (
            {"rmm_allocator_external_lib_list": "cupy,jax"},
            "rmm_allocator_external_lib_list must be some of cupy, torch, got 'jax'",
        ),
        ({"enable_nvlink": True, "rmm_managed_memory": True}, "enable_nvlink=True and rmm_managed"),
        ({"enable_nvlink": 1}, "enable_nvlink must be True, False or None, got 1"),
        ({"enable_rdmacm": True}, "enable_rdmacm=True needs enable_infiniband=True"),
        (
            {"enable_infiniband": True, "protocol": "tcp"},
            "enable_infiniband=True and protocol='tcp' exclude each other",
        ),
        ({"device_memory_limit": "lots"}, "device_memory_limit must be a size .* got 'lots'"),
        ({"device_memory_limit": 0.5, "data": dict}, "device_memory_limit=0.5 and data="),
        ({"log_spilling": True}, "log_spilling=True needs device_memory_limit"),
        ({"jit_unspill": True}, "jit_unspill=True .* gone from dask-cuda too"),
        ({"enable_cudf_spill": True}, "enable_cudf_spill=True .*CUDF_SPILL"),
    ],
)
def test_an_impossible_option_is_refused_before_any_search(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        CUDACluster(**options)


def test_a_wish_for_infiniband_against_the_lanes_is_refused_at_once() -> None:
    with (
        dask.config.set({"distributed.comm.backhaul.lanes": ["shm", "tcp"]}),
        pytest.raises(ConfigError, match=r"infiniband=True contradicts .*lanes=\['shm', 'tcp'\]"),
    ):
        CUDACluster(enable_infiniband=True)


@without_rmm
@pytest.mark.parametrize("options", [{"rmm_pool_size": "1GB"}, {"rmm_track_allocations": True}])
def test_without_rmm_the_error_names_the_package(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"RMM is not installed: pip install 'backhaul\[rmm\]'"):
        CUDACluster(**options)


@without_rmm
def test_the_pool_of_the_configuration_is_for_workers_with_gpus() -> None:
    with dask.config.set({"distributed.rmm.pool-size": "3GB"}):
        with pytest.raises(ConfigError, match="rmm_pool_size=3000000000: RMM is not installed"):
            sort_gpu_options({})
        assert sort_gpu_options({}, has_gpus=False)[0].plugins == ()


@pytest.mark.parametrize(
    ("options", "flags"),
    [
        ({"enable_infiniband": True}, {"infiniband": True}),
        ({"enable_infiniband": True, "enable_rdmacm": True}, {"infiniband": True, "rdmacm": True}),
        ({"enable_tcp_over_ucx": True, "enable_nvlink": True}, {"tcp": True, "nvlink": True}),
        # A user who excludes InfiniBand, and asks for nothing, has TCP.
        ({"enable_infiniband": False}, {"infiniband": False, "tcp": True}),
        ({"enable_nvlink": False}, {"nvlink": False}),
    ],
)
def test_transports_are_keys_of_the_configuration_of_workers(
    options: dict[str, Any], flags: dict[str, bool]
) -> None:
    with dask.config.set({"distributed-ucxx.environment": {"log-level": "warn"}}):
        _, others = sort_gpu_options({**options, "config": {"array.chunk-size": "1MiB"}})
    section = others["config"].pop("distributed-ucxx")
    assert others["config"] == {"array.chunk-size": "1MiB"}
    assert section.pop("environment") == {"log-level": "warn"}
    assert {key: value for key, value in section.items() if value is not None} == flags


def test_options_that_ask_for_nothing_are_taken() -> None:
    options: dict[str, Any] = {
        "device_memory_limit": "auto", "rmm_pool_size": None, "jit_unspill": False,
        "enable_nvlink": None, "protocol": "backhaul", "preload": "a", "pre_import": "b, c",
        "log_spilling": False, "rmm_async": False, "rmm_managed_memory": False,
    }  # fmt: skip
    found, others = sort_gpu_options(options)
    assert others == {"protocol": "backhaul", "preload": ["a", "b", "c"]}
    common, plan = WorkerOptions(), discover().plan("n", n=1)
    assert found.of_workers(common, plan) == common


def test_a_limit_for_workers_without_gpus_is_refused() -> None:
    found, _ = sort_gpu_options({"device_memory_limit": "1GB"})
    with pytest.raises(ConfigError, match=r"device_memory_limit=1000000000: worker '0' of the"):
        found.of_workers(WorkerOptions(), discover().plan("n", n=1))


def pool(**amounts: Any) -> PoolOptions:
    sizes = ("pool_size", "maximum_pool_size", "release_threshold")
    read: dict[str, Any] = {
        key: device_bytes(key, amount) if key in sizes else amount
        for key, amount in amounts.items()
    }
    return PoolOptions(**read)


@pytest.mark.parametrize(
    ("options", "arguments"),
    [
        (pool(track_allocations=True), {}),
        (
            pool(pool_size=0.5, maximum_pool_size=1_000_000_100),
            {
                "pool_allocator": True, "managed_memory": False, "initial_pool_size": GIB // 2,
                "maximum_pool_size": 1_000_000_000, "logging": True, "log_file_name": "log",
            },
        ),
        (
            pool(managed_memory=True),
            {
                "pool_allocator": False, "managed_memory": True, "initial_pool_size": None,
                "maximum_pool_size": None, "logging": True, "log_file_name": "log",
            },
        ),
        (
            pool(asynchronous=True, release_threshold=0.25),
            {"initial_pool_size": None, "release_threshold": GIB // 4},
        ),
    ],
)  # fmt: skip
def test_rmm_gets_the_options(options: PoolOptions, arguments: dict[str, Any]) -> None:
    assert options.arguments(GIB, "log") == arguments


#: Takes the place of RMM, which needs a GPU: records its calls.
STAND_IN = """
import json, os, types
def told(what):
    def tell(*arguments, **named):
        with open(os.environ["ALREADY_SENT"], "a") as file:
            file.write(json.dumps([what, named]) + "\\n")
    return tell
reinitialize = told("reinitialize")
mr = types.SimpleNamespace(
    get_current_device_resource=told("current"), set_current_device_resource=told("set"),
    TrackingResourceAdaptor=told("tracking"),
)
"""


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let this process, and those that it starts, find something that is called rmm."""
    (tmp_path / "rmm.py").write_text(STAND_IN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("ALREADY_SENT", str(tmp_path / "told"))
    return tmp_path


@without_rmm
@gen_test()
async def test_each_worker_sets_its_pool_up_before_it_has_tasks(stand_in: Path) -> None:
    async with (
        CUDACluster(
            machine=machine_with_gpus(1),
            dashboard_address=None,
            asynchronous=True,
            rmm_pool_size=1_000_000_100,
            rmm_log_directory=str(stand_in),
            rmm_track_allocations=True,
            enable_tcp_over_ucx=True,
        ) as cluster,
        Client(cluster, asynchronous=True) as client,
    ):

        def found(dask_worker: Worker) -> tuple[Any, ...]:
            return list(dask_worker.plugins), dask.config.get("distributed-ucxx.tcp")

        [(plugins, tcp)] = (await client.run(found)).values()
    assert "backhaul-rmm" in plugins
    assert tcp is True
    told = [json.loads(line) for line in (stand_in / "told").read_text().splitlines()]
    # Dask itself asks for the current one, for its dashboard.
    assert [what for what, _ in told][:4] == ["reinitialize", "current", "tracking", "set"]
    assert told[0][1]["initial_pool_size"] == 1_000_000_000
    assert told[0][1]["log_file_name"] == str(stand_in / "rmm_log_gpu0.txt")


@without_rmm
@gen_test()
async def test_a_worker_without_rmm_does_not_start_and_names_the_package(
    stand_in: Path,
) -> None:
    # It is here as the cluster is made, and gone when workers import it.
    cluster: Any = CUDACluster(
        machine=machine_with_gpus(1),
        dashboard_address=None,
        asynchronous=True,
        rmm_pool_size=0.5,
    )
    (stand_in / "rmm.py").unlink()
    with pytest.raises(RuntimeError) as caught:
        await cluster
    await cluster.close()
    causes: list[BaseException] = [caught.value]
    while (cause := causes[-1].__cause__) is not None:
        causes.append(cause)
    [said] = [str(error) for error in causes if isinstance(error, ConfigError)]
    assert "worker 'gpu0' cannot have rmm_pool_size=0.5: No module named 'rmm'" in said
    assert "pip install 'backhaul[rmm]'" in said


DRIVER = """
    int cuInit(unsigned flags) { return 0; }
    int cuDeviceGet(int *device, int number) { *device = 7 + number; return 0; }
    int cuDeviceGetAttribute(int *value, int which, int device)
    { *value = which == 18 && INTEGRATED; return device != 7; }
    int cuDeviceTotalMem_v2(unsigned long *bytes, int device)
    { *bytes = 1UL << 34; return device != 7; }
"""


@pytest.mark.parametrize(("integrated", "said"), [(0, str(1 << 34)), (1, "None")])
def test_the_driver_is_asked_for_the_memory_of_the_first_gpu(
    integrated: int, said: str, tmp_path: Path
) -> None:
    source, library = tmp_path / "source.c", tmp_path / "libcuda.so.1"
    source.write_text(DRIVER)
    subprocess.run(
        ["cc", "-shared", "-fPIC", f"-DINTEGRATED={integrated}", "-o", library, source], check=True
    )
    program = (
        "from backhaul.dask.launch.device_memory import device_memory_bytes;"
        "print(device_memory_bytes())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "LD_LIBRARY_PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == said, done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--device-memory-limit", "1GB"], "device_memory_limit=1000000000: worker 'numa0' of"),
        (["--rmm-managed-memory", "--rmm-async"], "rmm_managed_memory=True and rmm_async=True"),
        (["--rmm-pool-size", "1.5"], "rmm_pool_size must be a size .* got '1.5'"),
        (["--enable-rdmacm"], "enable_rdmacm=True needs enable_infiniband=True"),
        (["--enable-nvlink", "--protocol", "tcp"], "enable_nvlink=True and protocol='tcp'"),
    ],
)
def test_the_command_has_the_names_of_dask_cuda_worker(arguments: list[str], message: str) -> None:
    common = ["worker", "tcp://127.0.0.1:1", "--policy", "per-numa", "--death-timeout", "1"]
    done = CliRunner().invoke(main, [*common, *arguments])
    assert done.exit_code == 2
    [line] = done.output.splitlines()
    assert re.search(message, line), line
