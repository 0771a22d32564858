"""Arrays of the libraries that people use on GPUs, between two processes: `make gpu-test`.

Each library is skipped where it is not installed, and all of them without a GPU.
"""

from __future__ import annotations

import multiprocessing
from multiprocessing.connection import Connection
from typing import Any

import pytest

import backhaul
from backhaul.errors import CudaUnavailable

CARRIERS = ["lease", "single-copy", "cuda"]
ITEMS = 1 << 20


def _why_not() -> str | None:
    try:
        backhaul.DeviceBuffer(1)
    except CudaUnavailable as error:
        return str(error)
    return None


pytestmark = pytest.mark.skipif(_why_not() is not None, reason=f"no GPU: {_why_not()}")


def _cupy() -> tuple[Any, Any]:
    cupy = pytest.importorskip("cupy")
    return cupy.arange(ITEMS, dtype="f4"), cupy.zeros(ITEMS, dtype="f4")


def _cupy_async() -> tuple[Any, Any]:
    cupy = pytest.importorskip("cupy")
    with cupy.cuda.using_allocator(cupy.cuda.malloc_async):
        return _cupy()


def _cupy_managed() -> tuple[Any, Any]:
    cupy = pytest.importorskip("cupy")
    with cupy.cuda.using_allocator(cupy.cuda.malloc_managed):
        return _cupy()


def _rmm() -> tuple[Any, Any]:
    rmm = pytest.importorskip("rmm")
    np = pytest.importorskip("numpy")
    source = rmm.DeviceBuffer.to_device(np.arange(ITEMS, dtype="f4").tobytes())
    return source, rmm.DeviceBuffer(size=4 * ITEMS)


def _numba() -> tuple[Any, Any]:
    cuda = pytest.importorskip("numba.cuda")
    np = pytest.importorskip("numpy")
    return cuda.to_device(np.arange(ITEMS, dtype="f4")), cuda.device_array(ITEMS, dtype="f4")


def _torch() -> tuple[Any, Any]:
    torch = pytest.importorskip("torch")
    return torch.arange(ITEMS, dtype=torch.float32, device="cuda"), torch.zeros(
        ITEMS, device="cuda"
    )


def _jax() -> tuple[Any, Any]:
    jax = pytest.importorskip("jax")
    # Its arrays are not written to: what is received is another library's.
    return jax.numpy.arange(ITEMS, dtype="float32"), backhaul.DeviceBuffer(4 * ITEMS)


KINDS = {
    "cupy": _cupy,
    "cupy-async": _cupy_async,
    "cupy-managed": _cupy_managed,
    "jax": _jax,
    "numba": _numba,
    "rmm": _rmm,
    "torch": _torch,
}


def _echo(kind: str, connection: Connection) -> None:
    """Receive into an array of the library, and send that back."""
    context = backhaul.Context(lanes=["shm"], carriers=CARRIERS)
    listener = context.listen("127.0.0.1:0")
    connection.send(listener.address)
    endpoint = listener.accept().wait(30)
    _, target = KINDS[kind]()
    assert endpoint.recv(target, tag=1).wait(30).nbytes == 4 * ITEMS
    endpoint.send(target, tag=2).wait(30)
    endpoint.close().wait(30)


@pytest.mark.parametrize("kind", KINDS)
def test_an_array_goes_to_another_process_and_back(kind: str) -> None:
    np = pytest.importorskip("numpy")
    source, _ = KINDS[kind]()
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=_echo, args=(kind, theirs))
    process.start()
    try:
        assert ours.poll(60), "the other process does not listen"
        context = backhaul.Context(lanes=["shm"], carriers=CARRIERS)
        endpoint = context.connect(ours.recv()).wait(30)
        back = backhaul.DeviceBuffer(4 * ITEMS)
        endpoint.send(source, tag=1).wait(30)
        endpoint.recv(back, tag=2).wait(30)
        assert endpoint.statistics()["received_device_bytes"] == 4 * ITEMS
        host = np.empty(ITEMS, dtype="f4")
        back.copy_to_host(host)
        assert (host == np.arange(ITEMS, dtype="f4")).all()
    finally:
        process.join(30)
        process.terminate()
    assert process.exitcode == 0


def test_what_a_stream_has_under_way_is_sent_when_it_is_done() -> None:
    cupy = pytest.importorskip("cupy")
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=_echo, args=("cupy", theirs))
    process.start()
    try:
        assert ours.poll(60), "the other process does not listen"
        context = backhaul.Context(lanes=["shm"], carriers=CARRIERS)
        endpoint = context.connect(ours.recv()).wait(30)
        stream = cupy.cuda.Stream(non_blocking=True)
        with stream:
            source = cupy.zeros(ITEMS, dtype="f4")
            # Long enough that the announcement is there before it is over.
            for _ in range(2000):
                source += 1
            sent = endpoint.send(source, tag=1)
        sent.wait(30)
        back = cupy.zeros(ITEMS, dtype="f4")
        endpoint.recv(back, tag=2).wait(30)
        assert float(back.min()) == float(back.max()) == 2000
    finally:
        process.join(30)
        process.terminate()


@pytest.mark.parametrize("library", ["cupy", "torch"])
def test_what_was_received_is_an_array_without_a_copy(library: str) -> None:
    module = pytest.importorskip(library)
    buffer = backhaul.DeviceBuffer(1 << 20)
    array = module.from_dlpack(buffer)
    pointer = array.data_ptr() if library == "torch" else array.data.ptr
    assert pointer == buffer.ptr
