"""Patches of Dask's functions: when they are installed, when not, and how they are removed."""

from __future__ import annotations

import asyncio
import functools
import importlib
import inspect
import linecache
import os
import re
import reprlib
import threading
import types
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import dask.order
import distributed
import pytest
from distributed import Client, Scheduler, Worker
from distributed.batched import BatchedSend
from distributed.client import FutureState
from distributed.comm import connect, listen
from distributed.core import Server
from distributed.utils_test import gen_cluster, gen_test

import dask
from backhaul.dask import preload
from backhaul.dask.comm.batched_stream import AdaptiveBatchedSend
from backhaul.dask.compat import (
    activation,
    function_origin,
    instance_patches,
    patching,
    process_patches,
)
from backhaul.dask.compat.names import TaskFinishedMsg
from backhaul.dask.scheduler import window
from backhaul.dask.worker import event_stream, task_start

if TYPE_CHECKING:
    from tests.dask.conftest import Start

HOST = "backhaul://127.0.0.1"
SWITCHES = {
    "arena.allocate",
    "exchange",
    "hot-path.batching",
    "hot-path.execution",
    "hot-path.futures",
    "hot-path.order",
    "hot-path.result",
    "hot-path.worker-threads",
    "tls.note-settings",
}


@pytest.fixture(autouse=True)
def fresh(plain_dask: None) -> None:
    """Begin each test with Dask as it is, and end it so."""


def names() -> set[str]:
    return {str(function) for patch in activation.installed() for function in patch.functions}


#: Each function that is replaced, with its patch
REPLACED = [(patch, function) for patch in process_patches.PATCHES for function in patch.functions]


def functions() -> list[Any]:
    return [function.current() for _, function in REPLACED]


#: Those of what is a function and nothing else.
OF_FUNCTIONS = [
    number
    for number, (_, function) in enumerate(REPLACED)
    if isinstance(function.current(), types.FunctionType)
]


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.name == "backhaul.dask.compat.activation"]


def add(*numbers: int) -> int:
    return sum(numbers)


async def compute() -> None:
    """Let Dask work over our comms, which installs what can be."""
    async with (
        Scheduler(host=HOST, dashboard_address=":0") as scheduler,
        Worker(scheduler.address, nthreads=1),
        Client(scheduler.address, asynchronous=True) as client,
    ):
        futures = client.map(add, range(10))
        assert await client.submit(sum, futures) == 45
        assert await client.gather(futures) == list(range(10))


# Installing


def test_every_patch_fits_this_release(caplog: pytest.LogCaptureFixture) -> None:
    activation.install()
    assert names() == {
        "BatchedSend.start",
        "Expr.__dask_graph__",
        "P2PRechunkLayer._construct_graph",
        "Security._get_tls_context",
        "WorkerState._get_task_finished_msg",
        "Worker._start_async_instruction",
        "Worker.data",
        "Worker.log_event",
        "Client._send_to_scheduler",
        "Future.release",
        "Future.result",
        "FutureState._get_event",
        "distributed.worker._worker_cvar",
        "as_completed.update",
        "dask.order.order",
        "distributed.worker._run_actor",
    }, distributed.__version__
    assert len(activation.installed()) == len(process_patches.PATCHES) <= 12
    assert {patch.switch for patch in process_patches.PATCHES} == SWITCHES
    assert warnings(caplog) == []


def test_a_replacement_looks_like_what_it_replaces() -> None:
    originals = functions()
    activation.install()
    replacements = functions()
    for number, (original, replacement) in enumerate(zip(originals, replacements, strict=True)):
        assert replacement is not original
        if number not in OF_FUNCTIONS:
            continue
        assert replacement.__name__ == original.__name__
        assert replacement.__qualname__ == original.__qualname__
        assert replacement.__doc__ == original.__doc__
        is_coroutine = inspect.iscoroutinefunction(original)
        assert inspect.iscoroutinefunction(replacement) == is_coroutine
        assert set(inspect.signature(original).parameters) <= set(
            inspect.signature(replacement).parameters
        )


def test_installing_again_changes_nothing() -> None:
    activation.install()
    ours = functions()
    activation.install()
    assert functions() == ours


def test_threads_that_install_at_once_install_once() -> None:
    originals = functions()
    barrier = threading.Barrier(8)

    def install() -> list[Any]:
        barrier.wait(300)
        activation.install()
        return functions()

    with ThreadPoolExecutor(8) as pool:
        found = [future.result() for future in [pool.submit(install) for _ in range(8)]]
    assert all(seen == found[0] for seen in found)
    activation.uninstall()
    assert functions() == originals


def test_uninstalling_restores_the_functions_of_before() -> None:
    before = [dict(vars(function.place)) for _, function in REPLACED]
    activation.install()
    assert "_start_async_instruction" in vars(Worker)
    activation.uninstall()
    assert [dict(vars(function.place)) for _, function in REPLACED] == before
    assert "_start_async_instruction" not in vars(Worker)
    assert activation.installed() == []


def test_uninstalling_leaves_replacements_by_other_packages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Restored in the end, whatever happens meanwhile.
    monkeypatch.setattr(BatchedSend, "start", BatchedSend.start)
    activation.install()
    theirs = passing_on(BatchedSend.start)
    BatchedSend.start = theirs  # type: ignore[method-assign]
    activation.uninstall()
    assert BatchedSend.start is theirs
    assert activation.installed() == []


@pytest.mark.parametrize("switch", sorted(SWITCHES))
def test_a_switch_keeps_dasks_own(switch: str) -> None:
    originals = functions()
    with dask.config.set({f"distributed.comm.backhaul.{switch}": False}):
        activation.install()
        assert {patch.switch for patch in activation.installed()} == SWITCHES - {switch}
        for (patch, _), original, now in zip(REPLACED, originals, functions(), strict=True):
            assert (now is original) == (patch.switch == switch)
    # Switched on later, it comes with the next comm.
    activation.install()
    assert {patch.switch for patch in activation.installed()} == SWITCHES


def test_a_switch_that_is_no_switch_is_refused() -> None:
    key = "distributed.comm.backhaul.hot-path.batching"
    with dask.config.set({key: "maybe"}), pytest.raises(ValueError, match=key):
        activation.install()


# Refusing


def are_left_alone(left_alone: set[str], caplog: pytest.LogCaptureFixture) -> None:
    """Check that some patches are refused, once, the rest is installed, and Dask works."""
    originals = {str(function): function.current() for _, function in REPLACED}
    activation.install()
    activation.install()
    asyncio.run(compute())
    assert names() == originals.keys() - left_alone
    for _, function in REPLACED:
        name = str(function)
        assert (function.current() is originals[name]) == (name in left_alone)
    # One line, however many.
    (warning,) = warnings(caplog)
    named = re.match("Backhaul leaves (.*) as it is, (.*), with distributed ", warning)
    assert named is not None, warning
    assert set(named[1].split(", ")) == left_alone
    # The consequence of the first of them
    first = next(patch for patch, function in REPLACED if str(function) in left_alone)
    assert named[2] == first.without
    assert f"(made for {activation.SUPPORTED})" in warning


@pytest.mark.parametrize("number", range(len(process_patches.PATCHES)))
def test_an_unknown_source_is_left_alone(
    number: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    name = next(iter(process_patches.PATCHES[number].read))
    strange = function_origin.source_of(name)
    digest = patching.source_digest
    monkeypatch.setattr(
        patching, "source_digest", lambda source: "0" if source is strange else digest(source)
    )
    are_left_alone({str(function) for patch, function in REPLACED if name in patch.read}, caplog)


@pytest.fixture
def rewritten(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str, str], None]]:
    """Give a function that has a file of distributed read as if a line of it were another one."""
    read: Any = patching.source_digest

    def rewrite(module: str, before: str, after: str) -> None:
        file = inspect.getsourcefile(importlib.import_module(module))
        assert file is not None
        lines = linecache.getlines(file)
        changed = [line.replace(before, after) for line in lines]
        assert changed != lines
        stat = os.stat(file)
        monkeypatch.setitem(linecache.cache, file, (stat.st_size, stat.st_mtime, changed, file))
        read.cache_clear()

    yield rewrite
    read.cache_clear()


def refused() -> set[str]:
    every: tuple[patching.Patch | patching.Requirement, ...]
    every = (*process_patches.PATCHES, *instance_patches.INSTANCE_PATCHES)
    return {str(each) for each in every if patching._refusal(each.read, None) is not None}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("# Do not use self.data.pop(key, None), as it", "# Another comment: it"),
        ('"""Process one or more external events', '"""Handle external events'),
        ("def _purge_state(self, ts: TaskState) -> None:", "def _purge_state(self, ts):"),
        ("log: deque[tuple]", "log: deque[Any]"),
    ],
)
def test_a_changed_comment_docstring_or_annotation_refuses_nothing(
    rewritten: Callable[[str, str, str], None], before: str, after: str
) -> None:
    rewritten("distributed.worker_state_machine", before, after)
    assert refused() == set()


def test_a_changed_statement_refuses_the_patches_that_rely_on_it_and_no_others(
    rewritten: Callable[[str, str, str], None], caplog: pytest.LogCaptureFixture
) -> None:
    module = "distributed.worker_state_machine"
    rewritten(module, "pickle.dumps(typename(ts.type))", "pickle.dumps(str(ts.type))")
    assert refused() == {
        "Worker._start_async_instruction, WorkerState._get_task_finished_msg",
        "Worker.data, distributed.worker._worker_cvar, Worker.log_event",
        "Worker.state.__class__",
    }
    activation.install()
    (warning,) = warnings(caplog)
    assert "Backhaul leaves Worker._start_async_instruction, " in warning
    assert "_get_task_finished_msg differs from what was read of distributed" in warning


def test_a_changed_choice_of_the_next_task_refuses_the_queue_of_runs_and_no_other_patch(
    rewritten: Callable[[str, str, str], None],
) -> None:
    module = "distributed.worker_state_machine"
    rewritten(module, "tsr = self.ready.peek()", "tsr = next(self.ready.peekn(1))")
    assert refused() == {
        "Worker.handle_stimulus and 2 more",
        "WorkerState.__class__ and 2 more",
        "Worker.state.__class__",
    }


def test_a_function_that_dask_has_no_more_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    (found,) = (each for each in REPLACED if each[1].name == "_get_task_finished_msg")
    patch, function = found
    monkeypatch.delattr(function.place, function.name)
    refusal = patch.refusal()
    assert refusal is not None
    assert "WorkerStateMachine._get_task_finished_msg is missing from dask" in str(refusal)


def test_without_sources_dask_runs_as_it_is(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    originals = functions()
    patching.source_digest.cache_clear()
    with monkeypatch.context() as context:
        context.setattr(linecache, "getlines", lambda *_: [])
        asyncio.run(compute())
    patching.source_digest.cache_clear()
    assert names() == set()
    assert functions() == originals
    (warning,) = warnings(caplog)
    assert all(str(patch) in warning for patch in process_patches.PATCHES)


def passing_on(original: Callable[..., Any]) -> Callable[..., Any]:
    if inspect.iscoroutinefunction(original):

        async def wait_for_original(*arguments: Any, **options: Any) -> Any:
            return await original(*arguments, **options)

        return wait_for_original

    def call_original(*arguments: Any, **options: Any) -> Any:
        return original(*arguments, **options)

    return call_original


def wrapping(original: Callable[..., Any]) -> Callable[..., Any]:
    """Pass on, and show the source of what is wrapped, as instrumentation does."""
    return functools.wraps(original)(passing_on(original))


@pytest.mark.parametrize("replace", [passing_on, wrapping])
@pytest.mark.parametrize("number", OF_FUNCTIONS)
def test_functions_that_another_package_has_replaced_are_left_alone(
    number: int,
    replace: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    patch, function = REPLACED[number]
    theirs = replace(getattr(function.place, function.name))
    monkeypatch.setattr(function.place, function.name, theirs)
    # And those that rely on it, or on the whole class or module that it belongs to.
    changed = (function.place, theirs)
    relying = {
        str(one)
        for other, one in REPLACED
        if other is patch or any(function_origin.source_of(name) in changed for name in other.read)
    }
    are_left_alone(relying, caplog)
    assert getattr(function.place, function.name) is theirs
    activation.uninstall()
    assert getattr(function.place, function.name) is theirs


@pytest.mark.parametrize("replace", [passing_on, wrapping])
def test_an_execution_that_others_replaced_is_used(
    replace: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []
    original = Worker.execute

    async def execute(self: Worker, key: Any, *, stimulus_id: str) -> Any:
        calls.append(key)
        return await original(self, key, stimulus_id=stimulus_id)

    theirs = functools.wraps(original)(execute) if replace is wrapping else execute
    monkeypatch.setattr(Worker, "execute", theirs)
    asyncio.run(compute())
    assert len(calls) == 11


def test_a_class_of_which_others_replaced_a_part_is_not_pristine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert function_origin.is_pristine(BatchedSend)
    assert function_origin.is_pristine(dask.order)
    with monkeypatch.context() as context:
        context.setattr(BatchedSend, "send", wrapping(BatchedSend.send))
        assert not function_origin.is_pristine(BatchedSend)
    with monkeypatch.context() as context:
        context.setattr(FutureState, "cancel", passing_on(FutureState.cancel))
        assert not function_origin.is_pristine(FutureState)
    assert function_origin.is_pristine(BatchedSend)


class Overrides(Server):
    def handle_comm(self, comm: Any) -> Any: ...


@pytest.mark.parametrize(
    ("handler", "is_dasks"),
    [
        (Server.handle_comm, True),
        (Server.handle_stream, True),
        # Decorated by Dask
        (Scheduler.add_worker, True),
        (wrapping(Server.handle_comm), False),
        (Overrides.handle_comm, False),
        (functools.partial(Server.handle_comm), False),
        (eval("lambda: None"), False),
        (print, False),
        (None, False),
    ],
)
def test_what_is_dasks(handler: Any, is_dasks: bool) -> None:
    assert function_origin.is_dasks(handler) is is_dasks


def test_a_dataclass_as_python_3_13_makes_it_is_pristine(monkeypatch: pytest.MonkeyPatch) -> None:
    # Its ``__repr__`` is wrapped by a function of ``reprlib`` there.
    shown = reprlib.recursive_repr()(TaskFinishedMsg.__repr__)
    monkeypatch.setattr(TaskFinishedMsg, "__repr__", shown)
    assert function_origin.is_pristine(TaskFinishedMsg)


# Plain Dask


@gen_test()
async def test_other_comms_keep_dasks_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    activation.install()
    handled: list[Any] = []
    monkeypatch.setattr(event_stream, "handle_stream", handled.append)
    got: list[int] = []
    server = Server({}, stream_handlers={"number": lambda value: got.append(value)})
    event_stream.install_for_server(server)
    assert "handle_stream" in vars(server)

    async def serve(comm: Any) -> None:
        await server.handle_stream(comm)

    async with listen("tcp://127.0.0.1", serve) as listener:
        comm = await connect(listener.contact_address)
        stream = BatchedSend(interval="1 ms")
        stream.start(comm)
        assert type(stream) is BatchedSend
        for value in range(3):
            stream.send({"op": "number", "value": value})
        stream.send({"op": "close-stream"})
        with pytest.raises(distributed.comm.CommClosedError):
            await comm.read()
        await stream.close()
    assert got == [0, 1, 2]
    assert handled == []
    await server.close()


@gen_cluster(client=True, nthreads=[("tcp://127.0.0.1", 2)], scheduler="tcp://127.0.0.1")
async def test_a_preload_helps_a_cluster_without_our_comms(
    client: Client, scheduler: Scheduler, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert activation.installed() == []
    for server in (scheduler, worker, client):
        await preload.dask_setup(server)
    assert {patch.switch for patch in activation.installed()} == SWITCHES
    assert window.installed(scheduler) is not None
    taken: list[Any] = []
    start = task_start.start_execution

    def counted(worker: Worker, key: Any, **arguments: Any) -> bool:
        taken.append(key)
        return start(worker, key, **arguments)

    monkeypatch.setattr(task_start, "start_execution", counted)
    futures = client.map(add, range(100))
    assert await client.gather(futures) == list(range(100))
    assert len(taken) == 100
    streams_there_are = [worker.batched_stream, *scheduler.stream_comms.values()]
    assert {type(stream) for stream in streams_there_are} == {BatchedSend}
    assert AdaptiveBatchedSend not in {type(s) for s in scheduler.client_comms.values()}


REPORT = """
import sys
from distributed import Client
from backhaul.dask.compat import activation

def report(dask_scheduler):
    from backhaul.dask.compat import activation
    from backhaul.dask.scheduler import window
    switches = sorted({patch.switch for patch in activation.installed()})
    return switches, window.installed(dask_scheduler) is not None

with Client(sys.argv[1]) as client:
    print("installed", *client.run_on_scheduler(report), flush=True)
"""


def test_dasks_scheduler_takes_the_preload(start: Start) -> None:
    scheduler = start(
        *("-m", "dask", "scheduler", "--preload", "backhaul.dask.preload", "--no-dashboard"),
        *("--host", "tcp://127.0.0.1", "--port", "0", "--no-show"),
    )
    address = scheduler.wait_for(r"Scheduler at:\s+(tcp://\S+)")
    report = start("-c", REPORT, address)
    found = report.wait_for(r"^installed (.*)$")
    assert found == f"{sorted(SWITCHES)} True"
    assert scheduler.process.poll() is None
