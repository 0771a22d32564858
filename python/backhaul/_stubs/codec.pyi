"""Messages and graphs of Dask: the codec, graphs as bytes, and the order of tasks."""

from collections.abc import Callable, Iterable
from typing import Any, final

@final
class Codec:
    """Writes and reads messages of Python objects: msgpack, and frames for what it cannot say.

    Parameters
    ----------
    **names : object
        Classes and callables that give meaning to what msgpack cannot say; see
        ``crates/dask-python/src/codec/mod.rs`` for each.

    Raises
    ------
    TypeError
        If a name is missing, or is no class where one is needed.
    """

    def __new__(cls, **names: Any) -> Codec: ...
    def encode(
        self,
        message: object,
        frames: list[Any],
        options: object,
        or_pickle: bool = False,
        inline_bytes_max: int | None = None,
        /,
    ) -> int:
        """Write a message, its header to ``frames[0]`` and the rest behind.

        Returns the bytes of all frames, or -1 if writing was given up.
        """

    def decode(self, frames: object, options: object) -> Any:
        """Read a message."""

    def pack(self, object: object) -> bytes:
        """Write one object, as headers are written."""

    def unpack(self, data: object) -> Any:
        """Read one object, as headers are read."""

    def encode_task(self, task: object) -> bytes | None:
        """Write a task as a pickle; nothing, if it is not simple enough."""

    def encode_calls(
        self,
        task: object,
        keys: list[Any],
        calls: Iterable[tuple[Any, ...]],
        parse: Callable[[tuple[Any, ...]], tuple[tuple[Any, ...], frozenset[Any]] | None],
    ) -> bytes | None:
        """Write many calls of one function; nothing, if one is not simple enough.

        Parameters
        ----------
        task : object
            A task of the function with the named arguments that all calls have, and no others.
        keys : list
            Keys of the calls, all of them text.
        calls : iterable of tuple
            Arguments of each.
        parse : callable
            Gives arguments and dependencies of the task of a call whose arguments are not all
            numbers or text; nothing, if the calls are not to be written.

        Returns
        -------
        bytes or None
            As `TaskCalls` reads them.

        Raises
        ------
        ValueError
            If there are fewer calls than keys.
        """

    def encode_graph(
        self,
        graph: dict[Any, Any],
        ordered: dict[Any, int],
        wanted: Iterable[Any],
        pickle: Callable[[Any], bytes | None],
    ) -> bytes | None:
        """Write a graph of tasks; nothing, if something of it is for Dask to send.

        Parameters
        ----------
        graph : dict
            Tasks by key, materialized, culled.
        ordered : dict
            The place of each key in their order.
        wanted : iterable
            Keys that the client wants.
        pickle : callable
            Pickles a task that is not simple; nothing, if the graph is not to be written.

        Returns
        -------
        bytes or None
            As `TaskGraph` reads it.
        """

    def decode_task(self, payload: bytes) -> Any:
        """Read the payload of such a pickle."""

    def statistics(self) -> dict[str, int]:
        """Count functions and bytes that are remembered for sending and from receiving."""

    def clear(self) -> None:
        """Forget them."""

def order(
    graph: dict[Any, Any],
    graph_node: type,
    data_node: type,
) -> dict[Any, int]:
    """Number the keys of a Dask graph, given Dask's classes; see `backhaul.dask.scheduler.order`.

    Raises
    ------
    TypeError
        If a value of the graph is no node, or its dependencies are no frozenset.
    ValueError
        If only Dask can tell how to order it: it has a cycle, or its keys are not distinct.
    """

def set_listing(added: list[int]) -> list[int]:
    """Hashes in the order in which a set would list them; internal."""

def difference_listing(set: frozenset[int], other: list[int]) -> list[int]:
    """Hashes in the order in which ``set - other`` would list them; internal."""

@final
class TaskCalls:
    """Many calls of one function, as `Codec.encode_calls` wrote them; internal.

    Parameters
    ----------
    data : bytes
        The calls.

    Raises
    ------
    ValueError
        If they are malformed, or two have one key.
    """

    def __new__(cls, data: bytes) -> TaskCalls: ...
    def __len__(self) -> int: ...
    def keys(self) -> list[str]:
        """List the keys."""

    def groups(self) -> list[tuple[str, str]] | None:
        """List the groups, which are the prefixes, and a key of each; None: Dask has to say."""

    def tasks(self) -> list[tuple[str, bytes, bytes | None]]:
        """List key, pickle of the task, and msgpack of the keys that it depends on, if any."""

@final
class TaskGraph:
    """A graph of tasks, as `Codec.encode_graph` wrote it; internal.

    Parameters
    ----------
    data : bytes
        The graph.

    Raises
    ------
    ValueError
        If it is malformed, names a key twice, or one that it has not.
    """

    def __new__(cls, data: bytes) -> TaskGraph: ...
    def __len__(self) -> int: ...
    def keys(self) -> bytes:
        """Give msgpack of the keys: those of the tasks, then those that others have to know."""

    def wanted(self) -> list[int]:
        """Give the numbers of the keys that are wanted."""

    def groups(self) -> list[tuple[str, str, bytes]] | None:
        """List name and prefix of groups, and msgpack of a key; None: Dask has to say."""

    def are_texts(self) -> bool:
        """Tell whether all keys are text."""

    def tasks(self) -> list[tuple[bytes, tuple[int, ...], int, bool, bool]]:
        """List the tasks, in the order of their keys.

        Of each its pickle, the numbers of the keys that it depends on, its place in the order,
        whether it is a call, and whether it produces data.
        """
