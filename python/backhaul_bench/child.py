"""The measured process: ``python -m backhaul_bench.child MODULE OPTIONS CONTROL ROLE``.

Does what the control connection says with one end of a driver: ``open``, then any number of
``pingpong`` and ``stream``, then ``close``. Both ends get the same command; the ``client``
measures. ``ROLE`` is ``server``, ``client``, ``both`` (two threads of this process) or ``rank``
(MPI decides). Standard library only: it runs in the interpreters of the peers.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import json
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

from backhaul_bench.control import Control, ControlClosed
from backhaul_bench.driver import AsyncDriver, BlockingDriver, Driver
from backhaul_bench.summary import quantile

__all__ = ["main"]

_ACKNOWLEDGEMENT_BYTES = 8
#: Messages carry their number modulo this at both ends, so that an old echo does not pass for a new
_STAMPS = 251


def main(argv: list[str]) -> int:
    """Serve one driver until the control connection says ``close``.

    Parameters
    ----------
    argv : list of str
        Module of the driver, its options as JSON, path of the control socket, role.

    Returns
    -------
    int
        Exit status: 1 if the driver failed, which the control connection has reported.
    """
    module_name, options_text, control_path, role = argv
    module = importlib.import_module(module_name)
    options = json.loads(options_text)
    if role == "rank":
        role = module.role_of_rank()
    roles = ["server", "client"] if role == "both" else [role]
    failures: list[str] = []

    def serve(one_role: str) -> None:
        control = Control.connect(control_path)
        control.send(role=one_role)
        try:
            _serve(control, module.make_driver(options, role=one_role))
        except ControlClosed:
            pass  # the benchmark ended early
        except Exception as error:
            failures.append(one_role)
            detail = traceback.format_exc(limit=-3)
            control.send(error=f"{type(error).__name__}: {error}", detail=detail)
        finally:
            control.close()

    threads = [threading.Thread(target=serve, args=(each,), daemon=True) for each in roles[1:]]
    for thread in threads:
        thread.start()
    serve(roles[0])
    for thread in threads:
        thread.join()
    return 1 if failures else 0


def _serve(control: Control, driver: Driver) -> None:
    if isinstance(driver, AsyncDriver):
        loop = driver.new_event_loop()
        asyncio.set_event_loop(loop)
        try:
            _commands(control, driver, _AsyncMeasure(driver), loop.run_until_complete)
        finally:
            loop.close()
    elif isinstance(driver, BlockingDriver):
        _commands(control, driver, _BlockingMeasure(driver), lambda result: result)
    else:
        raise TypeError(f"{type(driver).__name__} is neither an AsyncDriver nor a BlockingDriver")


def _commands(
    control: Control,
    driver: Any,
    measure: _BlockingMeasure | _AsyncMeasure,
    run: Callable[[Any], Any],
) -> None:
    """Obey until ``close``; `run` turns what a driver's method returned into its result."""
    try:
        while True:
            command = control.receive()
            operation = command.pop("op")
            if operation == "close":
                break
            if operation == "open":
                if driver.role == "server":
                    control.send(address=run(driver.listen()))
                    run(driver.accept())
                else:
                    run(driver.connect(command["address"]))
                control.send(lane=driver.lane)
                continue
            gc.collect()
            gc.disable()
            try:
                outcome = run(getattr(measure, operation)(**command))
            finally:
                gc.enable()
            control.send(**outcome)
    finally:
        run(driver.close())
    control.send(closed=True)


class _BlockingMeasure:
    """The measuring loops; :class:`_AsyncMeasure` is the same with ``await``."""

    def __init__(self, driver: BlockingDriver) -> None:
        self._driver = driver

    def pingpong(self, *, nbytes: int, iterations: int, warmup: int) -> dict[str, Any]:
        driver, clock = self._driver, time.perf_counter_ns
        out, into = driver.place(_pattern(nbytes)), driver.place(_zeros(nbytes))
        stamps = driver.fills_buffers and driver.on_host
        receive = driver.receiver(into)
        if driver.role == "server":
            send = driver.sender(into)
            for _ in range(warmup + iterations):
                receive()
                send()
            return {}
        send = driver.sender(out)
        for _ in range(warmup):
            send()
            receive()
        round_trips_ns = [0] * iterations
        for index in range(iterations):
            stamp = index % _STAMPS
            if driver.on_host:
                out[0] = out[-1] = stamp
            start = clock()
            send()
            receive()
            round_trips_ns[index] = clock() - start
            if stamps and not into[0] == into[-1] == stamp:
                raise RuntimeError(f"echo {index} of {nbytes} bytes is not of this message")
        if driver.fills_buffers:
            _check(driver.read(into), driver.read(out))
        return _latency(round_trips_ns)

    def stream(self, *, nbytes: int, count: int, warmup: int, window: int) -> dict[str, Any]:
        driver, clock = self._driver, time.perf_counter_ns
        elapsed_ns = 0
        if driver.role == "server":
            buffers = [driver.place(_zeros(nbytes)) for _ in range(window)]
            acknowledge = driver.sender(_zeros(_ACKNOWLEDGEMENT_BYTES))
            for messages in (warmup, count):
                driver.receive_many(buffers, count=messages)
                acknowledge()
            _check(driver.read(buffers[0]), _pattern(nbytes))
            return {}
        out = driver.place(_pattern(nbytes))
        acknowledged = driver.receiver(_zeros(_ACKNOWLEDGEMENT_BYTES))
        for messages in (warmup, count):
            start = clock()
            driver.send_many(out, count=messages, window=window)
            acknowledged()
            elapsed_ns = clock() - start
        return {"elapsed_ns": elapsed_ns}


class _AsyncMeasure:
    def __init__(self, driver: AsyncDriver) -> None:
        self._driver = driver

    async def pingpong(self, *, nbytes: int, iterations: int, warmup: int) -> dict[str, Any]:
        driver, clock = self._driver, time.perf_counter_ns
        out, into = driver.place(_pattern(nbytes)), driver.place(_zeros(nbytes))
        stamps = driver.fills_buffers and driver.on_host
        receive = driver.receiver(into)
        if driver.role == "server":
            send = driver.sender(into)
            for _ in range(warmup + iterations):
                await receive()
                await send()
            return {}
        send = driver.sender(out)
        for _ in range(warmup):
            await send()
            await receive()
        round_trips_ns = [0] * iterations
        for index in range(iterations):
            stamp = index % _STAMPS
            if driver.on_host:
                out[0] = out[-1] = stamp
            start = clock()
            await send()
            await receive()
            round_trips_ns[index] = clock() - start
            if stamps and not into[0] == into[-1] == stamp:
                raise RuntimeError(f"echo {index} of {nbytes} bytes is not of this message")
        if driver.fills_buffers:
            _check(driver.read(into), driver.read(out))
        return _latency(round_trips_ns)

    async def stream(self, *, nbytes: int, count: int, warmup: int, window: int) -> dict[str, Any]:
        driver, clock = self._driver, time.perf_counter_ns
        elapsed_ns = 0
        if driver.role == "server":
            buffers = [driver.place(_zeros(nbytes)) for _ in range(window)]
            acknowledge = driver.sender(_zeros(_ACKNOWLEDGEMENT_BYTES))
            for messages in (warmup, count):
                await driver.receive_many(buffers, count=messages)
                await acknowledge()
            _check(driver.read(buffers[0]), _pattern(nbytes))
            return {}
        out = driver.place(_pattern(nbytes))
        acknowledged = driver.receiver(_zeros(_ACKNOWLEDGEMENT_BYTES))
        for messages in (warmup, count):
            start = clock()
            await driver.send_many(out, count=messages, window=window)
            await acknowledged()
            elapsed_ns = clock() - start
        return {"elapsed_ns": elapsed_ns}


def _pattern(nbytes: int) -> memoryview:
    """Bytes that a lost, repeated or shifted chunk would change, in touched pages."""
    unit = bytes(range(251))  # a prime length: no power of two is a period
    return memoryview(bytearray((unit * (nbytes // len(unit) + 1))[:nbytes]))


def _zeros(nbytes: int) -> memoryview:
    """Zero bytes in touched pages: a receive should not pay for page faults."""
    return memoryview(bytearray(b"\0" * nbytes))


def _check(received: memoryview, sent: memoryview) -> None:
    if received != sent:
        raise RuntimeError(f"a message of {len(sent)} bytes arrived changed")


def _latency(round_trips_ns: list[int]) -> dict[str, Any]:
    """One way is half a round trip."""
    return {
        "p50_ns": quantile(round_trips_ns, 0.50) / 2,
        "p99_ns": quantile(round_trips_ns, 0.99) / 2,
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
