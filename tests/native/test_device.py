"""Memory of GPUs, in processes whose driver needs no GPU: what is sent and received.

With ``BACKHAUL_CUDA_DRIVER=real`` they have the driver of the machine, and what only the other
driver supports is skipped.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest

#: Runs a program with the driver to its end, which must be in good order.
RunGpu: TypeAlias = Callable[..., None]


@pytest.mark.parametrize("lane", ["inproc", "shm"])
def test_an_array_is_sent_and_received_where_it_lies(run_gpu: RunGpu, lane: str) -> None:
    # Two ends over shared memory in one process cannot open each other's handles either: what
    # the sender has is copied to memory that they can.
    run_gpu(
        """
lane = sys.argv[1]
with connected(lane) as (near, far):
    source, target = filled(DATA), DeviceArray(len(DATA))
    receiving = far.recv(target, tag=7)
    near.send(source, tag=7).wait(60)
    assert receiving.wait(60) == (len(DATA), 7)
    assert target.read() == DATA
    assert near.statistics()["sent_device_bytes"] == len(DATA)
    assert far.statistics()["received_device_bytes"] == len(DATA)
    assert near.info()["carriers"] == ["cuda"]
""",
        lane,
    )


def test_frames_on_a_device_arrive_as_device_buffers_in_their_place(run_gpu: RunGpu) -> None:
    run_gpu("""
with connected("inproc") as (near, far):
    frames = [b"head", filled(DATA), bytearray(9000), DeviceArray(0), filled(b"tail")]
    sending = near.send_frames(frames)
    head, array, host, empty, tail = far.recv_frames().wait(60)
    sending.wait(60)
    assert bytes(head) == b"head"
    assert bytes(host) == bytes(9000)
    assert isinstance(array, backhaul.DeviceBuffer)
    assert isinstance(tail, backhaul.DeviceBuffer)
    # Without any bytes it is memory of the host as well.
    assert isinstance(empty, memoryview) and empty.nbytes == 0
    copy = bytearray(len(DATA))
    array.copy_to_host(copy)
    assert copy == DATA
    copy = bytearray(4)
    tail.copy_to_host(copy)
    assert copy == b"tail"
    # And on, from the memory in which they came.
    back = DeviceArray(len(DATA))
    receiving = near.recv(back)
    far.send(array).wait(60)
    receiving.wait(60)
    assert back.read() == DATA
""")


def test_memory_of_a_device_is_received_into_memory_of_the_host(run_gpu: RunGpu) -> None:
    run_gpu("""
with connected("inproc") as (near, far):
    target = bytearray(len(DATA))
    receiving = far.recv(target)
    near.send(filled(DATA)).wait(60)
    receiving.wait(60)
    assert target == DATA
    # The other way it is refused, as no way brings it there.
    receiving = far.recv(DeviceArray(len(DATA)))
    near.send(DATA)
    raises(backhaul.NoCarrier, receiving.wait, 60)
""")


def test_memory_of_one_device_is_received_on_another(run_gpu: RunGpu) -> None:
    run_gpu(
        """
with connected("inproc") as (near, far):
    target = DeviceArray(len(DATA), device=1)
    receiving = far.recv(target)
    near.send(filled(DATA)).wait(60)
    receiving.wait(60)
    assert target.read() == DATA
    assert backhaul.DeviceBuffer(5, device=1).device == 1
""",
        FAKE_CUDA_DEVICES="2",
    )


@pytest.mark.parametrize("lane", ["inproc", "shm", "tcp"])
def test_a_send_fails_where_no_carrier_takes_it(run_gpu: RunGpu, lane: str) -> None:
    # One side is without it, or the lane is.
    run_gpu(
        """
lane = sys.argv[1]
theirs = ["cuda"] if lane == "tcp" else []
with (
    backhaul.Context(lanes=[lane], carriers=["cuda"]) as ours,
    backhaul.Context(lanes=[lane], carriers=theirs) as other,
    other.listen("127.0.0.1:0") as listener,
):
    connecting = ours.connect(listener.address)
    far, near = listener.accept().wait(60), connecting.wait(60)
    assert near.lane == lane and near.info()["carriers"] == []
    array = filled(DATA)
    gone = weakref.ref(array)
    raises(backhaul.NoCarrier, near.send(array).wait, 60)
    raises(backhaul.NoCarrier, near.send_frames([b"head", array]).wait, 60)
    del array
    eventually(lambda: gc.collect() is not None and gone() is None)
    receiving = far.recv(bytearray(4))
    near.send(b"good").wait(60)
    receiving.wait(60)
""",
        lane,
    )


def test_the_object_is_kept_until_the_operation_is_over(run_gpu: RunGpu) -> None:
    run_gpu("""
with connected("inproc") as (near, far):
    source, target = filled(DATA), DeviceArray(len(DATA))
    sent_from, received_in = weakref.ref(source), weakref.ref(target)
    sending = near.send(source)
    del source
    gc.collect()
    time.sleep(0.05)
    assert not sending.done() and sent_from() is not None
    receiving = far.recv(target)
    del target
    gc.collect()
    receiving.wait(60)
    sending.wait(60)
    del receiving, sending
    # The next call of any thread releases the buffers that the engine has dropped.
    eventually(lambda: near.queued_bytes() is not None and sent_from() is None)
    eventually(lambda: near.queued_bytes() is not None and received_in() is None)
""")


@pytest.mark.parametrize("how", ["freed", "written to"])
def test_memory_may_be_used_again_once_its_send_is_over(run_gpu: RunGpu, how: str) -> None:
    # Within one process no handle opens, so the sender copies; and each operation begins late.
    run_gpu(
        """
stream = Stream()
data, zeros = (ctypes.create_string_buffer(bytes, len(DATA)) for bytes in (DATA, b""))
with connected("shm") as (near, far):
    for _ in range(3):
        source = filled(DATA, stream=stream.handle)
        target = DeviceArray(len(DATA))
        receiving = far.recv(target)
        for _ in range(3):
            stream.write(source, data)
        near.send(source).wait(60)
        if sys.argv[1] == "freed":
            stream.synchronize()
            del source
            near.queued_bytes()
            gc.collect()
        else:
            stream.write(source, zeros)
        receiving.wait(60)
        assert target.read() == DATA
""",
        how,
        FAKE_CUDA_DELAY_US="20000",
    )


def test_a_receive_that_is_cancelled_lets_go_of_its_memory(run_gpu: RunGpu) -> None:
    run_gpu("""
with connected("inproc") as (near, far):
    target = DeviceArray(len(DATA))
    gone = weakref.ref(target)
    receiving = far.recv(target)
    assert receiving.cancel()
    raises(backhaul.Cancelled, receiving.wait, 60)
    del target, receiving
    eventually(lambda: near.queued_bytes() is not None and gone() is None)
    # The message is there for the next one.
    target = DeviceArray(len(DATA))
    sending = near.send(filled(DATA))
    far.recv(target).wait(60)
    sending.wait(60)
    assert target.read() == DATA
""")


def test_without_a_driver_it_is_said_what_is_missing(start: Any) -> None:
    program = start(
        """
import backhaul

class Array:
    __cuda_array_interface__ = dict(
        shape=(3,), typestr="|u1", data=(4096, False), strides=None, version=3
    )

def unavailable(call, *arguments, **options):
    try:
        call(*arguments, **options)
    except backhaul.CudaUnavailable as error:
        assert isinstance(error, backhaul.ConfigError), error
        # Where there is a driver it has no such memory, or no device.
        print("libcuda" in str(error) or "no device" in str(error))
    except backhaul.InvalidBuffer:
        print(True)
    else:
        print(False)

with backhaul.Context(lanes=["inproc"], carriers=[]) as context:
    with context.listen("127.0.0.1:0") as listener:
        connecting = context.connect(listener.address)
        far, near = listener.accept().wait(60), connecting.wait(60)
        unavailable(near.send, Array())
        unavailable(near.recv, Array())
        unavailable(backhaul._native.cuda_devices)
        unavailable(backhaul.DeviceBuffer, 1)
        unavailable(backhaul.Context, carriers=["cuda"])
""",
        env={"LD_LIBRARY_PATH": "", "CUDA_VISIBLE_DEVICES": ""},
    )
    status, printed, errors = program.end()
    assert (status, printed.split()) == (0, ["True"] * 5), errors


#: Listens over shared memory and sends back what it gets, from where it came.
_ECHO = """
import sys
import backhaul
from device_arrays import DeviceArray

with backhaul.Context(lanes=["shm"], carriers=["cuda"]) as context:
    with context.listen("127.0.0.1:0") as listener:
        print(listener.address, flush=True)
        endpoint = listener.accept().wait(60)
    array = DeviceArray(int(sys.argv[1]))
    try:
        while True:
            if sys.argv[2] == "frames":
                endpoint.send_frames(endpoint.recv_frames().wait()).wait()
            else:
                endpoint.recv(array).wait()
                endpoint.send(array).wait()
    except backhaul.ConnectionFailed as error:
        print(type(error).__name__, flush=True)
"""

_ECHOED = """
address, kind = sys.argv[1], sys.argv[2]
with backhaul.Context(lanes=["shm"], carriers=["cuda"]) as context:
    endpoint = context.connect(address).wait(60)
    # A new allocation may have an address that the peer has opened for an earlier one.
    for turn in range(6):
        sent = bytes([turn]) * 100 + DATA[100:]
        source, target = filled(sent), DeviceArray(len(DATA))
        if kind == "frames":
            endpoint.send_frames([b"head", source]).wait(60)
            head, frame = endpoint.recv_frames().wait(60)
            assert bytes(head) == b"head" and isinstance(frame, backhaul.DeviceBuffer)
            _native.copy_memory(frame, target)
        else:
            receiving = endpoint.recv(target)
            endpoint.send(source).wait(60)
            receiving.wait(60)
        assert target.read() == sent, turn
        del source, target
    statistics = endpoint.statistics()
    assert statistics["sent_device_bytes"] == 6 * len(DATA)
    assert statistics["received_device_bytes"] == 6 * len(DATA)
    endpoint.close().wait(60)
"""


@pytest.mark.parametrize("kind", ["frames", "tagged"])
def test_arrays_go_to_another_process_and_come_back(
    start: Any, run_gpu: RunGpu, gpu_environment: dict[str, str], kind: str
) -> None:
    echo = start(_ECHO, 256 * 4096, kind, env=gpu_environment)
    run_gpu(_ECHOED, echo.line(), kind)
    assert echo.line() == "EndpointClosed"


def test_a_peer_that_is_killed_leaves_memory_to_its_owner(
    start: Any, gpu_environment: dict[str, str]
) -> None:
    silent = start(
        """
        import backhaul

        with backhaul.Context(lanes=["shm"], carriers=["cuda"]) as context:
            with context.listen("127.0.0.1:0") as listener:
                print(listener.address, flush=True)
                endpoint = listener.accept().wait(60)
            print("connected", flush=True)
            input()
        """,
        env=gpu_environment,
    )
    program = start(
        """
import sys, weakref
import backhaul
from device_arrays import *

with backhaul.Context(lanes=["shm"], carriers=["cuda"]) as context:
    endpoint = context.connect(sys.argv[1]).wait(60)
    source, target = filled(DATA), DeviceArray(len(DATA))
    gone = [weakref.ref(source), weakref.ref(target)]
    sending, receiving = endpoint.send(source, tag=1), endpoint.recv(target)
    del source, target
    print("posted", flush=True)
    raises(backhaul.PeerGone, sending.wait, 60)
    raises(backhaul.PeerGone, receiving.wait, 60)
    del sending, receiving
    eventually(lambda: endpoint.info() and [ref() for ref in gone] == [None] * 2)
print("let go", flush=True)
""",
        silent.line(),
        env=gpu_environment,
    )
    assert silent.line() == "connected"
    assert program.line() == "posted"
    silent.kill()
    assert program.line() == "let go"
    assert program.end()[0] == 0


def test_a_device_that_the_peer_does_not_see_is_named(
    start: Any, run_gpu: RunGpu, gpu_environment: dict[str, str], cuda_driver: Path | None
) -> None:
    if cuda_driver is None:
        pytest.skip("a driver of NVIDIA's cannot be told to have a second device")
    devices = {"FAKE_CUDA_DEVICES": "2"}
    echo = start(
        _ECHO, 256 * 4096, "tagged", env={**gpu_environment, **devices, "CUDA_VISIBLE_DEVICES": "1"}
    )
    run_gpu(
        """
with backhaul.Context(lanes=["shm"], carriers=["cuda"]) as context:
    endpoint = context.connect(sys.argv[1]).wait(60)
    receiving = endpoint.recv(DeviceArray(len(DATA)))
    endpoint.send(filled(DATA))
    raises(backhaul.PeerGone, receiving.wait, 60)
""",
        echo.line(),
        CUDA_VISIBLE_DEVICES="0",
        **devices,
    )
    status, _, errors = echo.end()
    assert status == 1
    assert "NoCarrier" in errors
    assert "which this process does not see (CUDA_VISIBLE_DEVICES=Some(" in errors
