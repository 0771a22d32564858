"""Arrays on GPUs between Dask's processes, under a driver that needs no GPU."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

import pytest
from distributed import Worker

from backhaul import DeviceBuffer
from backhaul.dask.comm import device_frames

#: Runs a program with the driver to its end, which must be in good order.
RunGpu: TypeAlias = Callable[..., None]

_CLUSTER = """
import dask
from distributed import Client, LocalCluster, process

# As tests/dask/conftest.py does: a worker that is killed may have the last of 5 s to end.
wait_for = process.wait_for
process.wait_for = lambda future, timeout: wait_for(future, 300)

import backhaul
from dask_arrays import *
from device_arrays import DATA

CONFIG = {
    # It drops copies that are too many, at any moment and at either worker: they are counted here.
    "distributed.scheduler.active-memory-manager.start": False,
    "distributed.comm.backhaul.carriers": ["lease", "single-copy", "cuda"],
    "distributed.comm.backhaul.gpu.allocator": "backhaul",
}

def cluster(**config):
    dask.config.set({**CONFIG, **config})
    return LocalCluster(
        protocol="backhaul", n_workers=2, threads_per_worker=1, dashboard_address=None
    )

def main():
    with cluster(%s) as workers, Client(workers) as client:
        a, b = sorted(client.nthreads())
        run(client, a, b)

def run(client, a, b):
"""

_MAIN = """
if __name__ == "__main__":
    main()
"""

_COMMS = """
import asyncio

import dask
from distributed.comm import connect, listen
from distributed.protocol import Serialize, Serialized

import backhaul
from backhaul.dask import BackhaulComm
from distributed.comm import CommClosedError
from distributed.utils import wait_for
from dask_arrays import *
from device_arrays import DATA

def config(frames=True, lane="shm"):
    return dask.config.set({
        "distributed.comm.backhaul.lanes": [lane],
        "distributed.comm.backhaul.carriers": ["cuda"],
        "distributed.comm.backhaul.gpu.allocator": "backhaul",
        "distributed.comm.backhaul.gpu.frames": frames,
    })

async def pair(theirs=True, lane="shm", deserialize=True):
    accepted = asyncio.get_running_loop().create_future()
    async def accept(comm):
        accepted.set_result(comm)
        await asyncio.Event().wait()
    with config(theirs, lane):
        listener = await listen("backhaul://127.0.0.1", accept, deserialize=deserialize)
    with config(True, lane):
        ours = await connect(listener.contact_address)
    return ours, await accepted, listener

def device_bytes_of(comm):
    return comm._endpoint.statistics()["sent_device_bytes"]
"""


@pytest.fixture
def run_gpu(start: Any, gpu_environment: dict[str, str], tmp_path: Path) -> RunGpu:
    """Run a program that imports ``dask_arrays``, from a file, as processes are spawned from it."""

    def run(source: str, **environment: str) -> None:
        path = tmp_path / "program.py"
        path.write_text(source)
        program = start("-W", "ignore", str(path), env={**gpu_environment, **environment})
        assert program.wait() == 0, program.output

    return run


def _in_cluster(body: str, config: str = "") -> str:
    return _CLUSTER % config + textwrap.indent(textwrap.dedent(body), "    ") + _MAIN


def _with_comms(body: str) -> str:
    program = textwrap.indent(textwrap.dedent(body), "    ")
    return f"{_COMMS}\nasync def main():\n{program}\nasyncio.run(main())\n"


def test_arrays_go_from_worker_to_worker_as_they_are(run_gpu: RunGpu) -> None:
    run_gpu(
        _in_cluster("""
        x = client.submit(array_of, DATA, workers=[a], pure=False)
        data, allocated_by = client.submit(bytes_of, x, workers=[b]).result()
        assert (data == DATA, allocated_by) == (True, "DeviceBuffer")
        assert client.run(device_bytes) == {a: len(DATA), b: 0}
        assert client.run(device_bytes, "received") == {a: 0, b: len(DATA)}
        # Many at once, among them what has no bytes.
        parts = [bytes([number]) * (number * 1000) for number in range(100)]
        arrays = [client.submit(array_of, part, workers=[a], pure=False) for part in parts]
        sizes = client.submit(lambda *arrays: [x.nbytes for x in arrays], *arrays, workers=[b])
        assert sizes.result() == [len(part) for part in parts]
        data, by = client.submit(joined, *arrays[1:], workers=[b]).result()
        assert data == b"".join(parts)
        assert by == {"DeviceBuffer"}
        assert client.run(device_bytes)[a] == len(DATA) + len(data)
        # A `DeviceBuffer` is sent like any other array.
        buffer = client.submit(backhaul.DeviceBuffer, 5000, workers=[a])
        assert client.submit(len, buffer, workers=[b]).result() == 5000
        assert client.run(device_bytes)[a] == len(DATA) + len(data) + 5000
        """)
    )


def test_a_client_without_a_gpu_gets_arrays_by_way_of_the_host(run_gpu: RunGpu) -> None:
    run_gpu(
        _in_cluster("""
        x = client.submit(array_of, DATA, workers=[a], pure=False)
        assert x.result().read() == DATA
        scattered = client.scatter(array_of(DATA), workers=[a], hash=False)
        assert client.submit(bytes_of, scattered, workers=[b]).result()[0] == DATA
        # Between the workers as it is, and never to or from the client or the scheduler.
        assert client.run(device_bytes) == {a: len(DATA), b: 0}
        assert device_bytes() == device_bytes("received") == 0
        """)
    )


def test_the_configured_allocator_is_used_for_received_frames(run_gpu: RunGpu) -> None:
    run_gpu(
        _in_cluster(
            """
            x = client.submit(array_of, DATA, workers=[a], pure=False)
            data, allocated_by = client.submit(bytes_of, x, workers=[b]).result()
            assert (data == DATA, allocated_by) == (True, "Array")
            """,
            '**{"distributed.comm.backhaul.gpu.allocator": "dask_arrays:frames_of"}',
        )
    )


def test_switched_off_everything_goes_by_way_of_the_host(run_gpu: RunGpu) -> None:
    run_gpu(
        _in_cluster(
            """
            x = client.submit(array_of, DATA, workers=[a], pure=False)
            assert client.submit(bytes_of, x, workers=[b]).result()[0] == DATA
            assert client.run(device_bytes) == {a: 0, b: 0}
            """,
            '**{"distributed.comm.backhaul.gpu.frames": False}',
        )
    )


@pytest.mark.parametrize("lane", ["inproc", "shm"])
def test_messages_keep_their_order_with_and_without_arrays(run_gpu: RunGpu, lane: str) -> None:
    run_gpu(
        _with_comms(f"""
        ours, theirs, listener = await pair(lane="{lane}")
        sent = [
            {{"number": 0}},
            {{"number": 1, "arrays": [Serialize(array_of(bytes([i]) * 999)) for i in range(200)]}},
            {{"number": 2, "host": Serialize(bytearray(1 << 20))}},
            {{"number": 3, "both": Serialize([array_of(DATA), b"host", array_of(b"")])}},
            {{"number": 4}},
        ]
        async def write():
            for message in sent:
                await ours.write(message)
        writing = asyncio.ensure_future(write())
        got = []
        while len(got) < len(sent):
            # As streams are read, and as answers are.
            got.extend(await theirs.read_arrived())
            if len(got) < len(sent):
                got.append(await theirs.read())
        await writing
        assert [message["number"] for message in got] == list(range(5))
        assert [x.read() for x in got[1]["arrays"]] == [bytes([i]) * 999 for i in range(200)]
        whole, host, empty = got[3]["both"]
        assert whole.read() == DATA and host == b"host" and empty.nbytes == 0
        assert device_bytes_of(ours) == 200 * 999 + len(DATA)
        # And the other way, what was received.
        writing = asyncio.ensure_future(theirs.write(Serialize(whole)))
        assert (await ours.read()).read() == DATA
        await writing
        """)
    )


def test_a_peer_that_takes_none_gets_frames_of_the_family_dask(run_gpu: RunGpu) -> None:
    run_gpu(
        _with_comms("""
        ours, theirs, listener = await pair(theirs=False)
        await ours.write(Serialize(array_of(DATA)))
        assert (await theirs.read()).read() == DATA
        # Also where it is named, as long as another family is.
        await ours.write(Serialize(array_of(DATA)), serializers=["cuda", "dask"])
        assert (await theirs.read(deserializers=["cuda", "dask"])).read() == DATA
        try:
            await ours.write(Serialize(array_of(DATA)), serializers=["cuda"], on_error="raise")
        except TypeError:
            pass
        else:
            raise AssertionError("an array was sent as nothing")
        assert device_bytes_of(ours) == 0
        """)
    )


def test_families_that_are_named_are_kept_to(run_gpu: RunGpu) -> None:
    run_gpu(
        _with_comms("""
        ours, theirs, listener = await pair()
        await ours.write(Serialize(array_of(DATA)), serializers=["dask"])
        assert (await theirs.read()).read() == DATA
        assert device_bytes_of(ours) == 0
        # Numbers and text have their short way beside arrays, too.
        writing = asyncio.ensure_future(
            ours.write({"data": [Serialize(x) for x in (1, "text", array_of(b"abc"))]})
        )
        number, text, array = (await theirs.read())["data"]
        await writing
        assert (number, text, array.read()) == (1, "text", b"abc")
        assert device_bytes_of(ours) == 3
        """)
    )


def test_serialized_frames_are_passed_on_to_peers_with_and_without_a_gpu(run_gpu: RunGpu) -> None:
    run_gpu(
        _with_comms("""
        first, second, listener = await pair(deserialize=False)
        writing = asyncio.ensure_future(first.write({"x": Serialize(array_of(DATA))}))
        message = await second.read()
        await writing
        assert isinstance(message["x"], Serialized)
        # On to one that takes it, and to one that does not.
        for takes in (True, False):
            third, fourth, listener = await pair(theirs=takes)
            writing = asyncio.ensure_future(third.write(message))
            assert (await fourth.read())["x"].read() == DATA
            await writing
            assert device_bytes_of(third) == takes * len(DATA)
        """)
    )


def test_memory_that_is_gone_ends_the_comm_on_both_sides(run_gpu: RunGpu) -> None:
    run_gpu(
        _with_comms("""
        ours, theirs, listener = await pair()
        array = array_of(DATA)
        array.memory.free()
        reading = asyncio.ensure_future(theirs.read())
        try:
            await ours.write(Serialize(array))
        except backhaul.InvalidBuffer as error:
            assert "is no memory of a device" in str(error)
        else:
            raise AssertionError("freed memory was sent")
        assert ours.closed()
        try:
            await reading
        except CommClosedError:
            pass
        else:
            raise AssertionError("freed memory was received")
        """)
    )


def test_a_read_that_is_cancelled_ends_the_comm(run_gpu: RunGpu) -> None:
    run_gpu(
        _with_comms("""
        ours, theirs, listener = await pair()
        # The description alone: the frame never follows.
        from backhaul.dask.comm import device_frames
        description = device_frames.Description(0, ((1, 100),), ())
        await ours._endpoint.send_frames([description.frame(), b"\\x80", b""])
        reading = asyncio.ensure_future(theirs.read())
        await asyncio.sleep(0.2)
        assert not reading.done()
        reading.cancel()
        try:
            await reading
        except asyncio.CancelledError:
            pass
        assert theirs.closed()
        """)
    )


@pytest.mark.parametrize(
    ("theirs", "ours", "reach"),
    [
        (None, None, True),
        (None, "1", True),
        ("1", "1", True),
        ("1,0", "0,1", True),
        ("1,0,2", "2, 0", True),
        ("1", "0", False),
        ("1", None, False),
        ("GPU-1", "1", False),
    ],
)
def test_memory_is_sent_where_each_gpu_is_seen(
    theirs: str | None, ours: str | None, reach: bool
) -> None:
    remote = {"device-frames": 1, "visible-devices": theirs}
    local = {"device-frames": 1, "visible-devices": ours}
    assert device_frames.reaches(local, remote) is reach
    assert not device_frames.reaches(local, {})
    assert not device_frames.reaches({}, remote)
    assert not device_frames.reaches(local, {**remote, "device-frames": 2})


def test_a_process_without_gpus_asks_for_none() -> None:
    assert device_frames.offer(["lease"], True) == {}
    assert device_frames.offer(["lease", "cuda"], False) == {}
    assert device_frames.offer(["lease", "cuda"], True)["device-frames"] == 1


def test_the_first_library_that_there_is_allocates() -> None:
    with pytest.raises(ImportError):
        device_frames.allocator("no_such_module:function")
    assert device_frames.allocator("builtins:bytearray") is bytearray
    assert callable(device_frames.allocator(None))


def test_arrays_that_say_nothing_of_streams_are_put_in_order(run_gpu: RunGpu) -> None:
    run_gpu("""
from backhaul.dask.serialize.device_arrays import Bytes
from device_arrays import DeviceArray, OlderArray, connected, filled

with connected("inproc") as (near, far):
    older, newer = OlderArray(filled(b"older")), filled(b"newer")
    for array in (older, newer):
        receiving = far.recv(DeviceArray(5))
        near.send(Bytes(array, 5)).wait(60)
        assert receiving.wait(60).nbytes == 5
    assert older.streams == [1]
""")


def test_rmm_alone_is_no_use_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    # Dask's own diagnostics import it.
    for name in ("cupy", "numba.cuda", "cudf", "torch"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(Worker, "_instances", set())
    monkeypatch.setitem(sys.modules, "rmm", ModuleType("rmm"))
    assert device_frames.offer(["cuda"], None) == {}
    monkeypatch.setitem(sys.modules, "cupy", ModuleType("cupy"))
    assert device_frames.offer(["cuda"], None)


def test_a_library_that_cannot_be_used_does_not_allocate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("rmm", "cupy", "numba"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('no libcudart')")
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.delitem(sys.modules, "numba.cuda", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    device_frames.allocator.cache_clear()
    try:
        assert device_frames.allocator(None) is DeviceBuffer
        with pytest.raises(RuntimeError, match="no libcudart"):
            device_frames.allocator("rmm")
    finally:
        device_frames.allocator.cache_clear()


def test_serializers_import_no_library_before_it_is_met() -> None:
    program = """
import sys
from backhaul.dask.serialize import device_arrays
from backhaul.dask.compat.names import cuda_serialize, dask_serialize

device_arrays.register()
device_arrays.register()
# Nor RMM, but for distributed, which imports it for its diagnostics
assert not {"torch", "jax", "jaxlib", "cupy", "numba"} & set(sys.modules)
for registry in (cuda_serialize, dask_serialize):
    assert registry._lazy["torch"] is registry._lazy["torchvision"]
    assert registry._lazy["torch"] is device_arrays._register_torch
assert cuda_serialize._lazy["jaxlib"] is device_arrays._register_jax
# Dask's own are where they were.
assert cuda_serialize._lazy["cupy"].__module__ == "distributed.protocol"
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
