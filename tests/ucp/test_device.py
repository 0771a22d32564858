"""Memory of GPUs by the UCX-Py API, under a driver that needs no GPU."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest

#: Runs a program with the driver to its end: a coroutine with two endpoints, ``a`` and ``b``.
RunGpu: TypeAlias = Callable[..., None]

_PROGRAM = """
import asyncio
import sys

import backhaul.ucp as ucp
import backhaul.ucp.blocking as blocking
from device_arrays import DATA, DeviceArray, filled

def sent_by_device(*endpoints):
    return sum(e._connection.native.statistics()["sent_device_bytes"] for e in endpoints)

async def main():
    accepted = asyncio.get_running_loop().create_future()
    listener = ucp.create_listener(accepted.set_result)
    a = await ucp.create_endpoint("127.0.0.1", listener.port)
    b = await accepted
    assert a.cuda_support() and b.cuda_support()
    by_device = sys.argv[1] == "1"
    assert a._connection.by_device is by_device
    await run(a, b, by_device)
    await a.close()
    await b.close()

async def run(a, b, by_device):
"""


@pytest.fixture(
    params=["self,cuda_ipc", "sm,cuda_copy,cuda_ipc", "tcp,cuda_copy"],
    ids=["inproc", "shm", "tcp"],
)
def run_gpu(
    request: pytest.FixtureRequest,
    cuda_driver: Path | None,
    gpu_environment: dict[str, str],
) -> RunGpu:
    """Run a coroutine on each lane; over TCP nothing comes from GPU to GPU by itself."""
    by_device = str(int("tcp" not in request.param))

    def run(source: str) -> None:
        program = _PROGRAM + textwrap.indent(textwrap.dedent(source), "    ")
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", f"{program}\nasyncio.run(main())", by_device],
            env={**gpu_environment, "UCX_TLS": request.param},
            capture_output=True,
            text=True,
            timeout=100,
        )
        assert done.returncode == 0, done.stderr

    return run


def test_messages_come_wherever_they_are_sent_from_and_received(run_gpu: RunGpu) -> None:
    run_gpu("""
        for source in (filled(DATA), DATA, ucp.Array(filled(DATA))):
            for target in (DeviceArray(len(DATA)), bytearray(len(DATA))):
                for tag in (None, "named", 7):
                    await asyncio.gather(a.send(source, tag=tag), b.recv(target, tag=tag))
                    got = target.read() if isinstance(target, DeviceArray) else target
                    assert got == DATA
        assert sent_by_device(a) == by_device * 2 * 2 * 3 * len(DATA)
    """)


def test_messages_of_one_tag_keep_their_order(run_gpu: RunGpu) -> None:
    run_gpu("""
        sent = [bytes([number]) * (500 + 5000 * number) for number in range(12)]
        async def send():
            kinds = [filled, bytes, bytearray]
            await asyncio.gather(*(a.send(kinds[n % 3](x)) for n, x in enumerate(sent)))
        async def recv():
            got = []
            for number, data in enumerate(sent):
                on_device = number % 2
                target = DeviceArray(len(data)) if on_device else bytearray(len(data))
                await b.recv(target)
                got.append(target.read() if on_device else bytes(target))
            return got
        _, got = await asyncio.gather(send(), recv())
        assert got == sent
    """)


def test_a_receive_on_a_gpu_takes_no_memory_of_the_host(run_gpu: RunGpu) -> None:
    run_gpu("""
        def own_mib():
            with open("/proc/self/status") as status:
                (line,) = (line for line in status if line.startswith("RssAnon"))
            return int(line.split()[1]) >> 10
        source, target = DeviceArray(192 << 20), DeviceArray(192 << 20)
        before = own_mib()
        receiving = asyncio.ensure_future(b.recv(target))
        await asyncio.sleep(0)
        assert own_mib() - before < 64
        await asyncio.gather(a.send(source), receiving)
        assert not by_device or own_mib() - before < 64
    """)


def test_sizes_that_differ_are_told(run_gpu: RunGpu) -> None:
    run_gpu("""
        for source in (filled, bytes):
            sending = asyncio.ensure_future(a.send(source(b"short")))
            target = DeviceArray(10).write(b"x" * 10)
            try:
                await b.recv(target)
            except ucp.exceptions.UCXMsgTruncated:
                assert target.read() == b"shortxxxxx"
            else:
                raise AssertionError("too short a message was received")
            await sending
            sending = asyncio.ensure_future(a.send(source(b"much too long")))
            try:
                await b.recv(DeviceArray(4))
            except ucp.exceptions.UCXError as error:
                assert "truncated" in str(error).lower()
            else:
                raise AssertionError("too long a message was received")
            await sending
        # Nothing, and what is not in one piece.
        await asyncio.gather(a.send(DeviceArray(0)), b.recv(DeviceArray(0)))
        for bad in (DeviceArray(8, shape=(2,), strides=(4,)), DeviceArray(8, data=(4096, False))):
            try:
                await a.send(bad)
            except ValueError:
                pass
            else:
                raise AssertionError("it was sent")
        await asyncio.gather(a.send(filled(b"good")), b.recv(DeviceArray(4)))
    """)


def test_fortran_order_is_one_piece(run_gpu: RunGpu) -> None:
    run_gpu("""
        array = filled(b"abcdef", shape=(2, 3), strides=(1, 2))
        target = DeviceArray(6)
        await asyncio.gather(a.send(array), b.recv(target))
        assert target.read() == b"abcdef"
    """)


def test_a_receive_that_is_cancelled_leaves_the_message_to_the_next(run_gpu: RunGpu) -> None:
    run_gpu("""
        receiving = asyncio.ensure_future(b.recv(DeviceArray(len(DATA))))
        await asyncio.sleep(0.01)
        receiving.cancel()
        await asyncio.wait([receiving])
        assert receiving.cancelled()
        target = DeviceArray(4)
        await asyncio.gather(a.send(filled(b"left")), b.recv(target))
        assert target.read() == b"left"
        await asyncio.gather(a.send(filled(b"next")), b.recv(target))
        assert target.read() == b"next"
    """)


def test_active_messages_come_in_memory_of_the_kind_they_were_sent_from(run_gpu: RunGpu) -> None:
    run_gpu("""
        for data in (b"short", DATA):
            _, got = await asyncio.gather(a.am_send(filled(data)), b.am_recv())
            assert got == data and isinstance(got, bytearray)
        ucp.register_am_allocator(DeviceArray, "cuda")
        for data in (DATA[:8192], DATA):
            _, got = await asyncio.gather(a.am_send(filled(data)), b.am_recv())
            assert isinstance(got, DeviceArray) and got.read() == data
            _, got = await asyncio.gather(a.am_send(data), b.am_recv())
            assert got == data and isinstance(got, bytearray)
        # As in UCX-Py, what is shorter than the threshold comes to the host.
        _, got = await asyncio.gather(a.am_send(filled(DATA[:8191])), b.am_recv())
        assert got == DATA[:8191] and isinstance(got, bytearray)
        assert sent_by_device(a) == by_device * (5 + 8192 + 8191 + 2 * len(DATA))
    """)


def test_a_threshold_of_zero_has_every_active_message_stay_on_gpus(
    run_gpu: RunGpu, gpu_environment: dict[str, str]
) -> None:
    gpu_environment["UCX_RNDV_THRESH"] = "0"
    run_gpu("""
        ucp.register_am_allocator(DeviceArray, "cuda")
        _, got = await asyncio.gather(a.am_send(filled(b"short")), b.am_recv())
        assert isinstance(got, DeviceArray) and got.read() == b"short"
    """)


def test_nothing_at_all_is_sent_from_a_gpu(run_gpu: RunGpu) -> None:
    run_gpu("""
        class Empty:
            __cuda_array_interface__ = dict(shape=(0,), typestr="<i8", data=(0, False), version=3)

        _, got = await asyncio.gather(a.am_send(Empty()), b.am_recv())
        assert got == b"" and isinstance(got, bytearray)
        await asyncio.gather(a.send(Empty()), b.recv(Empty()))
        _, got = await asyncio.gather(a.send_obj(Empty()), b.recv_obj())
        assert got == b""
    """)


def test_forced_tags_and_objects_take_memory_of_gpus(run_gpu: RunGpu) -> None:
    run_gpu("""
        for source in (filled(DATA), DATA, b"short", filled(b"short")):
            size = len(source) if isinstance(source, bytes) else source.nbytes
            for target in (DeviceArray(size), bytearray(size)):
                await asyncio.gather(
                    a.send(source, tag=5, force_tag=True), b.recv(target, tag=5, force_tag=True)
                )
                got = target.read() if isinstance(target, DeviceArray) else bytes(target)
                assert got == DATA[:size] if size > 5 else got == b"short"
        _, got = await asyncio.gather(a.send_obj(filled(DATA)), b.recv_obj(allocator=DeviceArray))
        assert got.read() == DATA
    """)


def test_programs_without_asyncio_do_the_same(run_gpu: RunGpu) -> None:
    run_gpu("""
        near, far = blocking.Endpoint(a), blocking.Endpoint(b)
        for source in (filled(DATA), DATA):
            target = DeviceArray(len(DATA))
            sending = asyncio.ensure_future(asyncio.to_thread(near.send, source, timeout=60))
            await asyncio.to_thread(far.recv, target, timeout=60)
            await sending
            assert target.read() == DATA
    """)


def test_transports_of_gpus_are_left_out_where_there_is_none() -> None:
    program = """
import logging
import backhaul.ucp as ucp
logging.basicConfig()
ucp.init({"TLS": "sm,cuda_ipc"})
print(ucp.core._get_ctx().cuda_support)
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.stdout == "False\n", done.stderr
    assert "names transports of GPUs" in done.stderr
