"""Instructions of a worker's state machine are performed as Dask does, in the same order."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from distributed import Worker
from distributed.comm import CommClosedError
from distributed.worker_state_machine import (
    AddKeysMsg,
    BaseWorker,
    Execute,
    GatherDep,
    Instruction,
    InvalidTransition,
    LongRunningMsg,
    ReleaseWorkerDataMsg,
    RetryBusyWorkerLater,
    TaskState,
)

from backhaul.dask.comm.already_sent import ALREADY_SENT
from backhaul.dask.worker.instructions import perform


class Told(ReleaseWorkerDataMsg):
    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        return ALREADY_SENT


class Stream:
    """Notes what is sent, until it is closed."""

    def __init__(self, worker: Noting) -> None:
        self.worker = worker
        self.comm = SimpleNamespace(closed=lambda: worker.is_closed)

    def send(self, *messages: Any) -> None:
        if self.worker.is_closed:
            raise CommClosedError
        # A single one is not sent where it is not to be.
        self.worker.sent += [each for each in messages if each is not ALREADY_SENT]


class Noting:
    """Records its instructions."""

    batched_send = Worker.batched_send

    def __init__(self, wanted: list[Any], *, debug: bool = False, is_closed: bool = False) -> None:
        self.debug = debug
        self.is_closed = is_closed
        self.sent: list[Any] = []
        self.started: list[Any] = []
        self.events: list[Any] = []
        self.batched_stream = Stream(self)
        self.state = SimpleNamespace(
            handle_stimulus=lambda *stimuli: self.answer(wanted),
            tasks={"x": TaskState("x", span_id="span")},
        )

    @staticmethod
    def answer(wanted: list[Any]) -> list[Any]:
        if wanted and isinstance(wanted[0], Exception):
            raise wanted[0]
        return wanted

    def execute(self) -> None:
        raise AssertionError("is only named")

    gather_dep = retry_busy_worker_later = execute

    def _start_async_instruction(self, name: str, function: Any, *args: Any, **named: Any) -> None:
        self.started.append((name, function.__name__, args, named))

    def log_event(self, topic: str, message: Any) -> None:
        self.events.append((topic, message))


def outcome(function: Any, worker: Any) -> Any:
    raised: Any = None
    try:
        function(worker)
    except Exception as error:
        raised = type(error), str(error)
    return worker.sent, worker.started, worker.events, raised


def gather(*keys: str) -> GatherDep:
    return GatherDep(worker="tcp://a:1", to_gather=set(keys), total_nbytes=9, stimulus_id="s")


WANTED: dict[str, list[Instruction | Exception]] = {
    "nothing": [],
    "a mixture": [
        ReleaseWorkerDataMsg(key=("x", 1), stimulus_id="s"),
        Execute(key="x", stimulus_id="s"),
        AddKeysMsg(keys=["x"], stimulus_id="s"),
        gather("y"),
        RetryBusyWorkerLater(worker="tcp://a:1", stimulus_id="s"),
        LongRunningMsg(key="x", run_id=1, compute_duration=1.5, stimulus_id="s"),
    ],
    "told": [Told(key="x", stimulus_id="s"), ReleaseWorkerDataMsg(key="y", stimulus_id="s")],
    "told alone": [Told(key="x", stimulus_id="s")],
    "unknown": [ReleaseWorkerDataMsg(key="x", stimulus_id="s"), Instruction(stimulus_id="s")],
    "no such task": [AddKeysMsg(keys=["x"], stimulus_id="s"), Execute(key="z", stimulus_id="s")],
    "refused": [InvalidTransition("x", "ready", "fetch", [])],
    "an error": [ValueError("odd")],
}


@pytest.mark.parametrize("options", [{}, {"debug": True}, {"is_closed": True}])
@pytest.mark.parametrize("wanted", WANTED.values(), ids=WANTED)
def test_it_does_what_dask_does(wanted: list[Any], options: dict[str, bool]) -> None:
    def theirs(worker: Any) -> None:
        try:
            BaseWorker.handle_stimulus(worker)
        except Exception as error:
            # As Worker.handle_stimulus, which calls the other by `super`
            if hasattr(error, "to_event"):
                worker.log_event(*error.to_event())
            raise

    assert outcome(perform, Noting(wanted, **options)) == outcome(theirs, Noting(wanted, **options))


def test_a_worker_that_sends_in_its_own_way_sends_each() -> None:
    class Own(Noting):
        def batched_send(self, msg: dict[str, Any]) -> None:
            self.sent.append(("own", msg["op"]))

    worker = Own(WANTED["a mixture"])
    perform(worker, "something")
    assert [what for _, what in worker.sent] == ["release-worker-data", "add-keys", "long-running"]


def test_keys_in_debug_output_are_cut() -> None:
    worker = Noting([gather(*(f"key-{number}" for number in range(100)))], debug=True)
    perform(worker)
    [(name, *_)] = worker.started
    assert name.startswith("gather_dep(tcp://a:1, {key-")
    assert len(name) == len("gather_dep(tcp://a:1, {})") + 80
