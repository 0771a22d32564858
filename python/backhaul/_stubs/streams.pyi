"""Streams of a scheduler, handled on the engine's thread."""

from typing import Any, final

from backhaul._stubs.endpoint import Endpoint
from backhaul._stubs.scheduler_core import SchedulerCore
from backhaul._stubs.scheduling import WindowPolicy

@final
class SchedulerStreams:
    """The streams of a scheduler, handled on the engine's thread, without Python; internal.

    A batch of messages that are all hot is handled there, and what follows from it is sent. Any
    other goes on to the reader of the connection. Messages of the core that follow from other calls
    leave with `flush`.

    Parameters
    ----------
    core : SchedulerCore
        The state.
    result_bytes_max : int, default 0
        Longest result that clients are handed, in bytes.
    window : WindowPolicy, optional
        How many tasks workers are sent before they need them. Its limits and what it has learned
        are taken over.
    fifo_timeout_s : float, default 0
        Graphs of a client that come this close together share a generation, in seconds.
    """

    def __new__(
        cls,
        core: SchedulerCore,
        *,
        result_bytes_max: int = 0,
        window: WindowPolicy | None = None,
        fifo_timeout_s: float = 0.0,
    ) -> SchedulerStreams: ...
    def add(self, kind: str, name: str, endpoint: Endpoint) -> int:
        """Take in a ``"worker"`` by its address, or a ``"client"`` by its name; give its number.

        Raises
        ------
        ValueError
            If the kind is neither.
        """

    def tap(self, peer: int) -> int:
        """Begin to handle the messages of a peer, once its reader has caught up.

        Returns
        -------
        int
            How many receives wait for messages. Others that were posted before are over.

        Raises
        ------
        ConnectionError
            If the connection has ended.
        """

    def remove(self, peer: int) -> list[list[bytes]]:
        """Handle the messages of a peer no more; its number is not used again.

        Messages that have gathered for it are sent. All other messages of the core to it are in the
        notes.

        Returns
        -------
        list of list of bytes
            Held messages, to be sent after those that they were held for: the frames of each batch.
        """

    def caught_up(self, peer: int, handled: int) -> None:
        """Tell how many messages the reader of a peer has handled, of those since the tap."""

    def hold(self, peer: int, hold: bool) -> None:
        """Tell that other messages for a peer are about to be sent and come first, or are sent."""

    def flush(self) -> bool:
        """Send what the core has to say; tell whether there are notes."""

    def pause(self, pause: bool) -> None:
        """Stop the handling of messages here for a while, or go on."""

    def set_keepers(self, clients: list[str]) -> None:
        """Tell which clients keep results."""

    def set_span(self, group: str, span: str | None) -> None:
        """Set the span of a group; tasks of no other group are submitted past Python."""

    def set_memory(self, worker: str, bytes: float) -> None:
        """Tell how much memory a worker uses, in bytes."""

    def observe(self, group: str, prefix: str, seconds: float, nbytes: float) -> bool:
        """Learn from a task handled elsewhere; tell if what was thought of it was wrong."""

    def refill(self, worker: str, stimulus: str, now_s: float) -> None:
        """Fill a worker if it is down to what it is filled at again."""

    def has_too_many(self, prefix: str) -> bool:
        """Tell whether it is worth it to take tasks of a prefix back from workers."""

    def notes(self) -> EngineNotes:
        """Take the work that is left to Python."""

    def failure(self) -> str | None:
        """Say what failed, upon which nothing is handled any more; None if nothing did."""

    def counts(self) -> dict[str, int]:
        """Count the messages that were handled, by operation, and the batches that were not."""

    def stop(self) -> StoppedStreams:
        """Handle nothing any more, from when this returns."""

@final
class EngineNotes:
    """Work that the engine leaves to Python."""

    @property
    def unwanted_from(self) -> list[str]:
        """Workers that send results that no client keeps."""

    @property
    def give_back(self) -> list[str]:
        """Prefixes of tasks of which workers have too many."""

    @property
    def submitted(self) -> list[SubmittedTask]:
        """Tasks that clients have submitted."""

    @property
    def gone_groups(self) -> list[dict[str, Any]]:
        """Groups in the form of `SchedulerCore.take_gone_groups`, which leaves these out."""

    @property
    def failure(self) -> str | None:
        """Why nothing is handled any more."""

    @property
    def unsaid(self) -> list[tuple[str, str | None, dict[str, Any]]]:
        """Messages in the form of `SchedulerCore.take_messages`."""

@final
class SubmittedTask:
    """A task that a client has submitted, and that the engine has taken."""

    @property
    def client(self) -> str:
        """Name of the client."""

    @property
    def start_s(self) -> float:
        """When it came, in seconds."""

    @property
    def is_new(self) -> bool:
        """True if it was not known before."""

    @property
    def has_collided(self) -> bool:
        """True if it is known with other dependencies, which it keeps."""

    @property
    def was_idle(self) -> bool:
        """True if nothing was to be done before."""

    @property
    def group(self) -> str | None:
        """Name of the group that came to be with it, if one did."""

    @property
    def span(self) -> str | None:
        """Span of that group."""

    @property
    def gone_before(self) -> int:
        """How many of `EngineNotes.gone_groups` had gone when that group came to be."""

@final
class StoppedStreams:
    """The state of streams that the engine handles no more."""

    @property
    def held(self) -> list[tuple[int, list[bytes]]]:
        """Numbers of peers, and frames of messages that wait for others."""

    @property
    def notes(self) -> EngineNotes:
        """Work that is left to Python."""

    @property
    def counts(self) -> dict[str, int]:
        """Counts in the form of `SchedulerStreams.counts`."""

    @property
    def expectations(self) -> list[tuple[str, float, float]]:
        """Prefixes with expected seconds and bytes."""

    @property
    def confirmed(self) -> list[tuple[str, int]]:
        """Groups, and how many of their tasks have finished."""
