"""Operations in flight, and the event loops and threads that wait for them."""

from collections.abc import Callable, Generator
from types import GenericAlias
from typing import Any, Generic, TypeVar, final

_T_co = TypeVar("_T_co", covariant=True)
_Argument = TypeVar("_Argument")
_Result = TypeVar("_Result")

def call_interruptibly(
    owner: object, thread: int, function: Callable[[_Argument], _Result], argument: _Argument
) -> _Result:
    """Call a function so that another thread may interrupt it.

    An exception of `interrupt_call` is raised in the function, or not at all if the function ends
    before.

    Parameters
    ----------
    owner : object
        Names the call for `interrupt_call`.
    thread : int
        `threading.get_ident` of the calling thread.
    function : callable
        The function, which takes one argument.
    argument : object
        Its argument.
    """

def running_calls() -> list[object]:
    """List the owners of the calls by `call_interruptibly` that run, the first one first."""

def interrupt_call(owner: object, exception: type[BaseException]) -> bool:
    """Raise an exception in a call by `call_interruptibly` of another thread.

    The exception is raised before the next instruction of Python code in the call. A function in
    another language ends first.

    Parameters
    ----------
    owner : object
        The owner of the call.
    exception : type
        A class of exceptions, which is called without arguments.

    Returns
    -------
    bool
        False if no such call runs.

    Raises
    ------
    TypeError
        If `exception` is no class of exceptions.
    """

def process_token() -> str:
    """Tell what peers know this process by: 32 hexadecimal digits, others after a fork."""

@final
class Request(Generic[_T_co]):
    """One operation in flight: ``await`` it, or ``wait()`` for it.

    Cancelling the task that awaits it, or dropping a request that was waited for in vain, gives the
    operation up. A receive that is given up loses nothing: a message that it has met already is
    there for the next receive that wants it, whole and in its place in the order. A send that is
    given up is withdrawn if nothing of it has left. A request that is never waited for goes on
    until it is done; that a message was refused is then logged.

    It may be waited for as often as wanted, by several tasks and threads at once; all get the same
    result. After `cancel` the request
    is over with `Cancelled`, unless its operation was done before: then it has the result.

    Event loops are those of asyncio and uvloop. To asyncio it is a coroutine: it can be given to
    `asyncio.create_task`, `asyncio.TaskGroup.create_task`, `asyncio.gather` and
    `asyncio.wait_for`; `asyncio.wait` takes tasks alone, made by one of the first two. Under trio,
    ``await trio.to_thread.run_sync(request.wait)``.
    """

    def done(self) -> bool:
        """Return whether the result is there."""

    def wait(self, timeout: float | None = None) -> _T_co:
        """Block until the operation is done and return its result.

        Parameters
        ----------
        timeout : float, optional
            Longest time to wait, in seconds; 0 or less to look once.

        Raises
        ------
        TimedOut
            If it is not done by then. It goes on, and may be waited for again.
        Cancelled
            If it was cancelled.

        Notes
        -----
        Signals are handled meanwhile: Control-C raises ``KeyboardInterrupt``, and the operation
        goes on. The thread's event loop, if it has one, stands still.
        """

    def result(self) -> _T_co:
        """Return the result of an operation that is done, else raise `NotDone`."""

    def cancel(self) -> bool:
        """Ask to cancel; the operation still completes, cancelled or with its result.

        Returns
        -------
        bool
            False if it was done already.
        """

    def send(self, value: None, /) -> Any:
        """Go on, as the coroutine of a task does; for event loops."""

    def throw(self, kind: Any, value: Any = None, traceback: Any = None, /) -> Any:
        """Give the operation up and raise, as the coroutine of a task does; for event loops."""

    def close(self) -> None:
        """Give the operation up if a task has it as its coroutine; see `cancel` for others."""

    @classmethod
    def __class_getitem__(cls, key: Any) -> GenericAlias: ...
    def __await__(self) -> Generator[Any, None, _T_co]: ...

@final
class LoopBridge:
    """The futures of one event loop that wait for the engine; internal."""

    def __new__(cls) -> LoopBridge: ...
    def fileno(self) -> int:
        """Returns the descriptor that the loop watches for reading.

        Raises
        ------
        ValueError
            If the loop is closed.
        """

    def reader(self) -> LoopReader:
        """Returns the callback of the descriptor, which closes the descriptor when it is freed."""

    def drain(self) -> None:
        """Settle what is due, on the loop, when the descriptor is readable."""

@final
class LoopReader:
    """Calls `LoopBridge.drain`, and closes the bridge's descriptors when it is freed; internal.

    An event loop that is closed drops its callbacks. Other references to the bridge may live on:
    Dask keeps workers and schedulers that are closed.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        """Settle what is due, on the loop, when the descriptor is readable; takes no arguments."""

@final
class Lookout:
    """Place of one thread that waits for requests instead of the event loop; internal.

    A request that is done wakes the thread that waits here, which looks, and says when the event
    loop is to be called. While no thread waits, it calls the event loop.
    """

    def __new__(cls, bridge: LoopBridge) -> Lookout: ...
    def watch(self, request: Request[Any]) -> bool:
        """Make a request wake the waiting thread once it is done; False if it is."""

    def expect(self, request: Request[Any], callback: Callable[[], None]) -> bool:
        """Call `callback` on the event loop, once, for the next that is done.

        Called on the event loop. In the place of an earlier one.

        Parameters
        ----------
        request : Request
            Request that is in flight now.
        callback : callable
            Called without arguments.

        Returns
        -------
        bool
            False if the request is done; then `callback` is not called.
        """

    def disregard(self) -> None:
        """Take the callback back."""

    def wait(self, request: Request[Any], timeout: float, *, awake: bool = False) -> bool:
        """Block this thread until the request is done, `rouse` is called, or time is over.

        Parameters
        ----------
        request : Request
            Request that is in flight now.
        timeout : float
            In seconds.
        awake : bool, default False
            Whether to poll for a moment before it sleeps, four times the ``spin`` of the context,
            unless that has been in vain lately.

        Returns
        -------
        bool
            True if there is something to look at. The thread looks in any case: a request that was
            done meanwhile has called no other thread.

        Raises
        ------
        RuntimeError
            If another thread waits here.
        ValueError
            If `timeout` is negative or no number.
        """

    def rouse(self, or_next: bool = False) -> bool:
        """Wake the thread that waits; False if none does.

        Parameters
        ----------
        or_next : bool, default False
            If none does, the next that comes is not to wait: it was on its way.

        Returns
        -------
        bool
            Whether a thread is or will be woken.
        """

    def close(self) -> None:
        """Give its descriptor back: a thread that waits, now or later, returns immediately."""

    def call(self, within: float = 0.0) -> None:
        """Call the event loop, if it expects that: at once, or within so many seconds.

        Within a time: the loop handles it when it is called for something else, and at that time at
        the latest; no thread is woken for it before.
        """
