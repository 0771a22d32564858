"""`Client.map` without an expression: all calls in one message, made natively.

Dask's client makes an expression of the calls, from which its scheduler makes a task for each. Here
the native codec encodes the calls: once the parts that all tasks share, mainly the function, and
for each task its key and its arguments (``crates/dask/src/codec/calls.rs``). The scheduler
assembles a task when it sends the task to a worker. Keys, futures and options are made as Dask
makes them. Calls that the codec cannot write take Dask's path, and so do all calls for a scheduler
that has not announced support (`backhaul.dask.comm.capabilities`).
"""

from __future__ import annotations

import contextlib
import gc
import logging
import uuid
import warnings
from collections.abc import Callable, Iterator
from numbers import Number
from typing import Any, Final

from dask.tokenize import tokenize
from dask.utils import format_bytes, funcname, parse_bytes

import dask
from backhaul.dask.client.futures import give_up, make_futures, states_of
from backhaul.dask.client.keys import names_of_calls
from backhaul.dask.client.submit import as_dasks_own, may_submit, said_of, send_compactly
from backhaul.dask.compat.names import Client, Future, Task, parse_input, sizeof
from backhaul.dask.compat.operations import MAP
from backhaul.dask.resource_pools.requests import anyone_asks, needs_of
from backhaul.dask.serialize.codec import codec
from backhaul.dask.serialize.submit_message import FIFO_TIMEOUT

__all__ = ["compact_map", "warn_of_size"]

#: Dask's own log, for what Dask logs there
logger = logging.getLogger("distributed.client")

#: Iterables that can be iterated several times with the same items
_LISTS: Final = frozenset({list, tuple, range})

#: Larger keyword arguments get a separate task, as in Dask
_NAMED_BYTES_MAX: Final = 1e5

#: Largest message, estimated from the first call: for larger ones Dask's path is as fast, and the
#: codec has a limit
_BYTES_MAX: Final = 256 << 20

#: From this count on, the cyclic garbage collector is disabled while futures are made
_MANY: Final = 10_000

#: Text of Dask's warning of a large graph
_LARGE: Final = """\
Sending large graph of size {}.
This may cause some slowdown.
Consider loading the data with Dask directly
 or using futures or delayed objects to embed the data into the graph without repetition.
See also https://docs.dask.org/en/stable/best-practices.html#load-data-with-dask \
for more information."""


def compact_map(original: Callable[..., Any]) -> Callable[..., Any]:
    """Make a `Client.map` that sends one compact message where it can."""
    compactly = _mapped

    def map(
        self: Client,
        func: Callable[..., Any],
        *iterables: Any,
        key: Any = None,
        workers: Any = None,
        retries: Any = None,
        resources: Any = None,
        priority: Any = 0,
        allow_other_workers: Any = False,
        fifo_timeout: Any = FIFO_TIMEOUT,
        actor: Any = False,
        actors: Any = False,
        pure: Any = True,
        batch_size: Any = None,
        **kwargs: Any,
    ) -> Any:
        options = {
            "workers": workers,
            "resources": resources,
            "retries": retries,
            "priority": priority,
            "allow_other_workers": allow_other_workers,
        }
        actor = actor or actors
        if not batch_size:
            futures, key = compactly(
                self, func, iterables, kwargs, key, actor, pure, fifo_timeout, options
            )
            if futures is not None:
                return futures
        return original(
            self,
            func,
            *iterables,
            key=key,
            fifo_timeout=fifo_timeout,
            actor=actor,
            pure=pure,
            batch_size=batch_size,
            **options,
            **kwargs,
        )

    return as_dasks_own(map, original)


def _mapped(
    client: Client,
    func: Callable[..., Any],
    iterables: tuple[Any, ...],
    kwargs: dict[str, Any],
    key: Any,
    actor: Any,
    pure: Any,
    fifo_timeout: Any,
    options: dict[str, Any],
) -> tuple[list[Future[Any]] | None, Any]:
    """Make calls in a compact message, if they can be; their futures, or None, and their keys."""
    if not (
        callable(func)
        and iterables
        and all(type(each) in _LISTS and each for each in iterables)
        and (actor is True or actor is False)
        and _are_usual(options)
        and may_submit(client, MAP)
    ):
        return None, key
    try:
        named: dict[str, Any] = {name: parse_input(value) for name, value in kwargs.items()}
        shared = Task("", func, **named)
    except Exception:
        # For example, a keyword that `Task` itself uses: Dask reports the error.
        return None, key
    if shared.data_producer or any(sizeof(value) > _NAMED_BYTES_MAX for value in kwargs.values()):
        return None, key
    parse = _parser(func, named)
    # The first call is encoded alone, to estimate the size, before all keys are computed.
    first = [each[0] for each in iterables]
    look = codec.encode_calls(shared, [""], [tuple(first)], parse)
    if look is None or len(look) * min(map(len, iterables)) > _BYTES_MAX:
        return None, key
    if anyone_asks() and needs_of(shared) is not None:
        # The scheduler reads the resource requests of a function from the function itself.
        return None, key
    keys = _keys(func, iterables, kwargs, key or funcname(func), pure=pure and not actor)
    if keys is None:
        return None, key
    calls = codec.encode_calls(shared, keys, zip(*iterables, strict=False), parse)
    if calls is None or len(set(keys)) != len(keys):
        return None, keys
    message: dict[str, Any] = {"op": MAP, "calls": calls}
    if actor:
        message["actor"] = True
    if fifo_timeout != FIFO_TIMEOUT:
        message["fifo_timeout"] = fifo_timeout
    with client._refcount_lock:
        message |= said_of(client, options)
        with _no_collection(len(keys)):
            states = states_of(client, keys)
            futures: list[Future[Any]] = []
            try:
                warn_of_size(len(calls))
                send_compactly(client, message)
                # The scheduler reads the message while the futures are made.
                make_futures(client, states, futures)
            except BaseException:
                give_up(client, states[len(futures) :])
                raise
    logger.debug("map(%s, ...)", funcname(func))
    return futures, keys


def _are_usual(options: dict[str, Any]) -> bool:
    """Tell whether Dask would accept these options of the calls."""
    workers, loose = options["workers"], options["allow_other_workers"]
    if workers is not None and not isinstance(workers, (str, Number, list, set)):
        return False
    return loose is False or loose is None or (loose is True and workers is not None)


def _parser(func: Callable[..., Any], named: dict[str, Any]) -> Callable[[tuple[Any, ...]], Any]:
    """Make the function that gives the codec the arguments and dependencies of a task."""

    def parse(args: tuple[Any, ...]) -> tuple[tuple[Any, ...], frozenset[Any]] | None:
        found: Any = parse_input(args)
        task = Task("", func, *found, **named)
        if anyone_asks() and needs_of(task) is not None:
            return None
        return task.args, task.dependencies

    return parse


def _keys(
    func: Callable[..., Any], iterables: tuple[Any, ...], kwargs: Any, key: Any, *, pure: bool
) -> list[Any] | None:
    """Make the keys of the calls as Dask does; None if Dask has to make them."""
    count = min(map(len, iterables))
    if isinstance(key, str):
        if pure:
            token = tokenize(func, kwargs)
            keys = names_of_calls(key, token, iterables)
        else:
            unique = uuid.uuid4()
            keys = [f"{key}-{unique}-{number}" for number in range(count)]
    elif type(key) is list and len(key) == count:
        keys = key
    else:
        return None
    return keys


@contextlib.contextmanager
def _no_collection(count: int) -> Iterator[None]:
    """Disable the cyclic garbage collector while many objects are made that all stay alive."""
    pauses = count >= _MANY and gc.isenabled()
    if pauses:
        gc.disable()
    try:
        yield
    finally:
        if pauses:
            gc.enable()


def warn_of_size(nbytes: int) -> None:
    """Warn of a large message, as Dask warns of a large graph."""
    limit = dask.config.get("distributed.admin.large-graph-warning-threshold")
    if nbytes > parse_bytes(limit):
        warnings.warn(_LARGE.format(format_bytes(nbytes)), stacklevel=4)
