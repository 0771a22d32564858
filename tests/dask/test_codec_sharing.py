"""Functions that tasks share: when the receiver may give one object to several of them."""

from __future__ import annotations

import importlib
import sys
import threading
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
from dask._task_spec import Task
from distributed import protocol
from distributed.protocol import ToPickle

from backhaul.dask.serialize import codec


def sent(task: Task) -> Task:
    """Send a task and read it."""
    received: Task = codec.loads(codec.dumps([ToPickle(task)]))[0]
    return received


def by_value(source: str, **namespace: Any) -> Callable[..., Any]:
    """Make a function ``f`` of no module, as in a notebook."""
    scope: dict[str, Any] = {"__name__": "__main__", **namespace}
    exec(source, scope)
    function: Callable[..., Any] = scope["f"]
    return function


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[types.ModuleType]:
    """Make a module with a function, and a file to change it by."""
    (tmp_path / "sharing_example.py").write_text("def version(): return 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module("sharing_example")
    del sys.modules["sharing_example"]


def test_a_function_by_value_is_loaded_once() -> None:
    function = by_value("def f(x): return x + 1")
    first, second = (sent(Task(f"k{i}", function, i)) for i in range(2))
    assert first.func is second.func
    assert (first(), second()) == (1, 2)


def test_names_that_a_function_captured_are_looked_up_again(module: types.ModuleType) -> None:
    function = by_value("def f(): return version()", version=module.version)
    assert sent(Task("a", function))() == 1
    assert module.__file__ is not None
    Path(module.__file__).write_text("def version(): return 22\n")
    importlib.invalidate_caches()
    importlib.reload(module)
    # The same bytes, by the name of the function that was captured.
    function = by_value("def f(): return version()", version=module.version)
    assert sent(Task("b", function))() == 22


@pytest.mark.parametrize(
    "source",
    [
        "def f():\n  g = globals(); g['n'] = g.get('n', 0) + 1\n  return g['n']",
        "def f():\n  exec('global n\\nn = n + 1 if \"n\" in globals() else 1')\n  return eval('n')",
        "def f():\n  setattr(f, 'n', getattr(f, 'n', 0) + 1)\n  return f.n",
        "def f():\n  f.n = getattr(f, 'n', 0) + 1\n  return f.n",
    ],
)
def test_a_function_that_may_keep_state_is_loaded_for_each_task(source: str) -> None:
    function = by_value(source)
    assert [sent(Task(f"k{i}", function))() for i in range(3)] == [1, 1, 1]


def test_a_function_that_is_an_argument_is_loaded_for_each_task() -> None:
    def count(g: Any) -> int:
        g.n = getattr(g, "n", 0) + 1
        return int(g.n)

    function = by_value("def f(): pass")
    assert [sent(Task(f"k{i}", count, function))() for i in range(3)] == [1, 1, 1]


def test_one_function_stays_one_within_a_task() -> None:
    sentinel = by_value("def f(): pass")
    function = by_value("def f(x): return x is sentinel", sentinel=sentinel)
    assert sent(Task("k", function, sentinel))() is True
    default = by_value("def f(x, y=sentinel): return x is y", sentinel=sentinel)
    assert sent(Task("k", default, sentinel))() is True


def test_an_object_shared_within_a_task_is_written_once() -> None:
    nested: Any = ("x",)
    for _ in range(40):
        nested = (nested, nested)
    strings = ["x" * 1000] * 10_000
    for argument in (nested, strings):
        frames = codec.dumps([ToPickle(Task("k", len, argument))])
        assert sum(map(len, frames)) < 100_000
    assert sent(Task("k", len, strings))() == 10_000


def test_large_arguments_are_left_to_another_thread() -> None:
    task = ToPickle(Task("k", len, bytes(50_000_000)))
    assert codec.encode([task], inline_bytes_max=10_000_000) is None


def test_modules_registered_by_value_are_pickled_as_dask_does(module: types.ModuleType) -> None:
    function = by_value("def f(): return version()", version=module.version)
    sent(Task("k", function))
    cloudpickle.register_pickle_by_value(module)
    try:
        ours = sent(Task("k", function)).func
        theirs = protocol.loads(protocol.dumps([ToPickle(Task("k", function))]))[0].func
    finally:
        cloudpickle.unregister_pickle_by_value(module)
    assert ours.__globals__["version"] is not module.version
    assert theirs.__globals__["version"] is not module.version


def test_a_module_that_another_thread_imports_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "slow_example.py").write_text(
        "import sys\n"
        "begun, go_on = sys.slow_example\n"
        "begun.set()\n"
        "go_on.wait(300)\n"
        "def version(): return 2\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    begun, go_on = threading.Event(), threading.Event()
    monkeypatch.setattr(sys, "slow_example", (begun, go_on), raising=False)
    example = types.ModuleType("slow_example")
    exec("def version(): return 2", example.__dict__)
    sys.modules["slow_example"] = example
    frames = codec.dumps([ToPickle(Task("k", example.__dict__["version"]))])
    del sys.modules["slow_example"]
    importing = threading.Thread(target=importlib.import_module, args=("slow_example",))
    importing.start()
    try:
        assert begun.wait(300)
        threading.Timer(0.1, go_on.set).start()
        assert codec.loads(frames)[0]() == 2
    finally:
        go_on.set()
        importing.join()
        del sys.modules["slow_example"]
