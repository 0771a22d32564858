"""Tasks in messages: pickles made by the codec, and what it remembers of functions."""

from __future__ import annotations

import contextlib
import gc
import operator
import pickle
import sys
import types
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import cloudpickle
import numpy as np
import pytest
from dask._task_spec import Alias, DataNode, Dict, GraphNode, List, Set, Task, TaskRef, Tuple
from distributed.protocol import core
from distributed.protocol.serialize import ToPickle
from hypothesis import given, settings
from hypothesis import strategies as st

from backhaul.dask.serialize import codec
from backhaul.dask.serialize.codec import codec as native

MARK = b"backhaul.dask.serialize.codec"


@pytest.fixture(autouse=True)
def nothing_remembered() -> Iterator[None]:
    native.clear()
    yield
    native.clear()


def state(found: Any) -> Any:
    """Take a task apart, as `==` would call functions different that are not."""
    if isinstance(found, Task):
        return type(found), [state(getattr(found, slot)) for slot in Task.get_all_slots()]
    if isinstance(found, GraphNode):
        return found.__reduce__()[0], [state(part) for part in found.__reduce__()[1]]
    if isinstance(found, types.FunctionType):
        return found.__module__, found.__qualname__, found.__code__.co_code, found.__defaults__
    if isinstance(found, (partial, np.ndarray)):
        return repr(found)
    if isinstance(found, dict):
        return [(state(key), state(value)) for key, value in found.items()]
    if isinstance(found, (list, tuple)):
        return type(found), [state(item) for item in found]
    return type(found), found


def sent(task: Any, *, simple: bool = True) -> Any:
    """Send a task, checking that Dask would understand it as we do."""
    frames = codec.dumps({"run_spec": ToPickle(task)})
    assert (MARK in bytes(frames[1])) == simple
    ours = codec.loads(frames)["run_spec"]
    assert state(core.loads(frames)["run_spec"]) == state(ours)
    theirs = core.dumps({"run_spec": ToPickle(task)})
    assert state(codec.loads(theirs)["run_spec"]) == state(ours)
    return ours


def in_main(source: str, name: str = "f", **names: Any) -> Any:
    """Define something as a program would that is run and not imported."""
    namespace: dict[str, Any] = {"__name__": "__main__", **names}
    exec(source, namespace)
    return namespace[name]


@pytest.mark.parametrize(
    "task",
    [
        Task("k", operator.add, TaskRef("a"), 1),
        Task(("x", 1, 2), operator.add, TaskRef(("a", 0)), 2.5, None, True, b"b", "ä"),
        Task("k", dict, [1, [2]], {"a": {"b": (1,)}}, frozenset({1}), x=slice(1, None, 2)),
        Task("k", operator.add, 2**63, -(2**63), 2**64 - 1),
        Task("k", print, b"0" * 20_000, "x" * 300),
        Task("k", List(TaskRef("a"), Tuple(1, TaskRef("b"))).func, 1),
        Task("k", sum, List(TaskRef("a"), 2), Dict(a=TaskRef("b")), Set(1, TaskRef("c"))),
        Task("k", print, Task("i", abs, TaskRef("a")), _data_producer=True),
        GraphNode.fuse(Task("a", abs, 1), Task("b", abs, TaskRef("a"))),
        Task("k", partial(print, 1, [2], sep=partial(abs, -1)), 2),
        Alias("a", "b"),
        DataNode("a", 5),
        DataNode(("a", 1), [1, 2]),
        List(TaskRef("a"), 1),
    ],
    ids=repr,
)
def test_simple_tasks_arrive_as_they_were(task: Any) -> None:
    found = sent(task)
    assert state(found) == state(task)
    assert type(pickle.loads(pickle.dumps(found))) is type(task)


def shared() -> Any:
    twice = [1]
    return Task("k", print, twice, [twice])


@pytest.mark.parametrize(
    "task",
    [
        Task("k", partial(operator.add, np.arange(2)), 2),
        Task("k", print, np.arange(3)),
        Task("k", print, 2**64),
        Task("k", print, np.int64(1)),
        Task("k", print, bytearray(b"a")),
        Task("k", print, "\ud800"),
        Task("k", print, in_main("class f: pass")),
        shared(),
    ],
    ids=lambda task: str(task.args)[:30].encode("ascii", "replace").decode(),
)
def test_other_tasks_are_pickled_as_a_whole(task: Any) -> None:
    sent(task, simple=False)


def test_an_object_that_is_in_a_task_twice_stays_one() -> None:
    first, second = sent(shared(), simple=False).args
    assert second[0] is first


def test_a_task_that_holds_itself_is_left_to_the_pickler() -> None:
    loop: list[Any] = []
    loop.append(loop)
    found = codec.loads(codec.dumps([ToPickle(Task("k", print, loop))]))[0]
    assert found.args[0][0] is found.args[0]


def test_computed_attributes_of_a_task_arrive_with_it() -> None:
    task = Task("k", abs, TaskRef("a"))
    assert repr(task)
    assert hash(task)
    assert task.is_coro is False
    assert state(sent(task)) == state(task)


def test_sub_classes_of_tasks_are_pickled_as_a_whole() -> None:
    class Mine(Task):
        __slots__ = ()

    assert MARK not in bytes(codec.dumps([ToPickle(Mine("k", abs, 1))])[1])
    assert MARK not in bytes(codec.dumps([ToPickle({"task": Task("k", abs, 1)})])[1])


def test_a_function_is_pickled_once() -> None:
    function = in_main("def f(x): return x + offset + helper(x)", offset=3, helper=abs)
    pickles = 0

    def count(*arguments: Any, **options: Any) -> Any:
        nonlocal pickles
        pickles += 1
        return real(*arguments, **options)

    real = cloudpickle.dumps
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cloudpickle, "dumps", count)
        frames = [codec.dumps([ToPickle(Task(i, function, i))]) for i in range(10)]
    assert pickles == 1
    tasks = [codec.loads(frame)[0] for frame in frames]
    assert [task() for task in tasks] == [2 * i + 3 for i in range(10)]
    assert len({id(task.func) for task in tasks}) == 1
    assert native.statistics()["sent_functions"] == 1
    assert native.statistics()["loaded_functions"] == 1


@pytest.mark.parametrize(
    "arguments",
    [(Alias("other"),), ([1, 2],), ({"a": 1},), (slice(1), List(Alias("a"), Alias("b")))],
    ids=["future", "list", "dict", "futures"],
)
def test_a_function_by_value_travels_with_what_can_change(arguments: tuple[Any, ...]) -> None:
    function = in_main("def f(*args): return args")
    task = Task("k", function, *arguments, named=[3])
    pickled = native.encode_task(task)
    assert pickled is not None
    found = pickle.loads(pickled)
    assert found.args == arguments
    assert found.kwargs == {"named": [3]}
    assert found.dependencies == task.dependencies
    # One of a task within it could be the same as another there, which the pickler alone knows.
    assert native.encode_task(Task("k", abs, Task(None, function, *arguments))) is None
    assert native.encode_task(Task("k", abs, function)) is None


def result(function: Callable[..., Any], *arguments: Any) -> Any:
    return codec.loads(codec.dumps([ToPickle(Task("k", function, *arguments))]))[0]()


def test_a_function_that_changes_is_pickled_again() -> None:
    function = in_main("def f(x=1): return x, a, g()\na = 1\ndef g(): return b\nb = 2")
    assert result(function) == (1, 1, 2)
    function.__defaults__ = (5,)
    assert result(function) == (5, 1, 2)
    function.__globals__["a"] = 6
    assert result(function) == (5, 6, 2)
    function.__globals__["b"] = 7
    assert result(function) == (5, 6, 7)
    function.note = "x"
    assert codec.loads(codec.dumps([ToPickle(Task("k", function))]))[0].func.note == "x"
    function.__dict__ = {}
    assert not codec.loads(codec.dumps([ToPickle(Task("k", function))]))[0].func.__dict__
    function.__code__ = (lambda: 8).__code__
    assert result(function) == 8

    def closure() -> tuple[Callable[[], int], Callable[[int], None]]:
        value = 1

        def assign(new: int) -> None:
            nonlocal value
            value = new

        return lambda: value, assign

    read, assign = closure()
    assert result(read) == 1
    assign(2)
    assert result(read) == 2


def test_a_decorated_function_is_remembered() -> None:
    source = """
import functools
def twice(inner):
    @functools.wraps(inner)
    def wrapper(x): return inner(inner(x))
    return wrapper
@twice
def f(x): return x + 1
"""
    assert result(in_main(source), 1) == 3
    assert native.statistics()["sent_functions"] == 1


def test_a_name_that_appears_later_is_seen() -> None:
    function = in_main("def f(): return abs(-1)")
    assert result(function) == 1
    function.__globals__["abs"] = str
    assert result(function) == "-1"


@pytest.mark.parametrize(
    "function",
    [
        in_main("def f(x=[]): x.append(1); return x"),
        in_main("def f(*, x=1): return x"),
        in_main("def f(): return values", values={"a": 1}),
        in_main("def f():\n global n\n n += 1\n return n\nn = 0"),
        in_main("def f(): f.n = 1"),
        in_main("def f(): pass\nf.n = []"),
        in_main(
            "def g():\n n = 0\n def h():\n  nonlocal n\n  n += 1\n  return n\n return h\nf = g()"
        ),
    ],
    ids=range(7),
)
def test_a_function_that_may_keep_state_is_not_remembered(function: Any) -> None:
    first, second = (
        codec.loads(codec.dumps([ToPickle(Task("k", function))]))[0].func for _ in range(2)
    )
    assert first is not second
    assert native.statistics()["sent_functions"] == 0


def test_a_function_that_no_longer_is_under_its_name_is_sent_by_value() -> None:
    module = types.ModuleType("backhaul_test_module")
    exec("def f(): return 1", module.__dict__)
    old = module.f
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, module.__name__, module)
        assert MARK in bytes(codec.dumps([ToPickle(Task("k", old))])[1])
        assert codec.loads(codec.dumps([ToPickle(Task("k", old))]))[0].func is old
        exec("def f(): return 2", module.__dict__)
        assert result(old) == 1
        assert result(module.f) == 2
        frames = codec.dumps([ToPickle(Task("k", module.f))])
        del module.f
        # It is the fault of one task, not of the message that it is in.
        with pytest.raises(RuntimeError, match="deserialization") as raised:
            codec.loads(frames)[0]()
        cause = raised.value.__cause__
        assert isinstance(cause, AttributeError)
        assert "Can't get attribute 'f' on <module" in str(cause)
    with pytest.raises(RuntimeError, match="deserialization") as raised:
        codec.loads(frames)[0]()
    cause = raised.value.__cause__
    assert isinstance(cause, ModuleNotFoundError)
    assert module.__name__ in str(cause)


def test_a_function_among_the_arguments_that_is_nowhere_fails_its_task_too() -> None:
    module = types.ModuleType("backhaul_test_module")
    exec("def f(): return 1", module.__dict__)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, module.__name__, module)
        frames = codec.dumps([ToPickle(Task("k", print, [partial(module.f, 1)], x=2))])
    task = codec.loads(frames)[0]
    assert task.key == "k"
    with pytest.raises(RuntimeError, match="deserialization") as raised:
        task()
    assert module.__name__ in str(raised.value.__cause__)


def test_no_id_is_taken_for_that_of_an_older_function() -> None:
    # More than are remembered.
    for value in range(700):
        function = in_main(f"def f(): return {value}")
        assert result(function) == value
        del function
        if value % 50 == 0:
            # Of what was made here, all is young.
            gc.collect(1)


def test_the_number_of_remembered_functions_is_bounded() -> None:
    for value in range(700):
        codec.loads(codec.dumps([ToPickle(Task("k", in_main(f"def f(): return {value}")))]))
    statistics = native.statistics()
    assert statistics["sent_functions"] == statistics["loaded_functions"] == 512
    native.clear()
    for value in range(12):
        text = f"{value}" * 3_000_000
        codec.loads(codec.dumps([ToPickle(Task("k", in_main("def f(): return x", x=text)))]))
    statistics = native.statistics()
    assert statistics["sent_bytes"] <= 16 << 20
    assert statistics["loaded_bytes"] <= 16 << 20
    large = in_main("def f(): return len(x)", x="x" * (5 << 20))
    native.clear()
    assert result(large) == 5 << 20
    assert native.statistics()["sent_functions"] == 0


def test_an_object_that_cannot_be_pickled_raises_as_in_dask() -> None:
    function = in_main("def f(): return lock", lock=__import__("threading").Lock())
    with pytest.raises(TypeError, match="cannot pickle"):
        codec.dumps([ToPickle(Task("k", function))])


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\x01\x02",
        b"\x91\x00\x01",
        b"\x92\x06\x00",
        b"\x92\x0a\x01",
        b"\xc1",
        b"\x93\x09\x01\x02",
    ],
)
def test_a_damaged_task_is_refused(payload: bytes) -> None:
    with pytest.raises(ValueError, match="malformed"):
        native.decode_task(payload)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=50))
def test_random_payloads_never_do_harm(payload: bytes) -> None:
    refusals = (ValueError, TypeError, ImportError, AttributeError, EOFError, pickle.PickleError)
    with contextlib.suppress(*refusals, LookupError):
        native.decode_task(payload)


atoms = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=20)
    | st.binary(max_size=20)
    | st.text(max_size=5).map(TaskRef)
    | st.just(slice(None, 3))
    | st.sampled_from([abs, int, operator.add, pickle.dumps, np.arange])
)
arguments = st.recursive(
    atoms,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text(max_size=4), inner, max_size=4)
        | st.lists(inner, max_size=3).map(lambda items: Task("inner", abs, *items))
        | st.lists(inner, max_size=3).map(lambda items: List(*items))
    ),
    max_leaves=12,
)


@settings(max_examples=200, deadline=None)
@given(st.lists(arguments, max_size=4))
def test_any_task_arrives_as_dask_would_send_it(items: list[Any]) -> None:
    task = Task("k", print, *items)
    frames = codec.dumps([ToPickle(task)])
    expected = core.loads(core.dumps([ToPickle(task)]))[0]
    assert state(codec.loads(frames)[0]) == state(core.loads(frames)[0]) == state(expected)
