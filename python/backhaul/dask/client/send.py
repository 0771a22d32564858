"""What the threads of a program do by themselves that the event loop of their client does in Dask.

A client has an event loop in a thread of its own, and the program's threads ask it for everything.
For a small task that is two hand-overs there and two back, each with a wake-up and a wait for the
interpreter. Here a thread of the program sends what it submits
(`backhaul.dask.comm.threaded_stream`), unless something is in front of it that the event loop has
to send.

Asynchronous clients have no such threads, and a thread with an event loop of its own is left alone.
"""

from __future__ import annotations

import asyncio
from typing import Any

from backhaul.dask.client.outgoing_queue import outbox_of
from backhaul.dask.comm.threaded_stream import SharedBatchedSend
from backhaul.dask.compat.names import Client

__all__ = ["send_what_is_queued", "sent_in_thread"]


def sent_in_thread(client: Client, message: dict[str, Any]) -> bool:
    """Send a message of a client in this thread, if it may.

    Parameters
    ----------
    client : distributed.Client
        Runs, and has a scheduler that understands the message.
    message : dict
        The message.

    Returns
    -------
    bool
        False if it is for the event loop to send; nothing was done.
    """
    stream: Any = client.scheduler_comm
    if type(stream) is not SharedBatchedSend or not _is_thread_of(client):
        return False
    outbox = outbox_of(client)
    # What this thread has given the event loop to send goes first, however far that has got.
    if outbox.holds_up() or not stream.send_in_thread(message):
        return False
    outbox.look_often()
    return True


def send_what_is_queued(client: Client) -> bool:
    """Send what threads have queued for company, as this one is about to wait.

    Returns
    -------
    bool
        Whether threads have sent anything since the last call: this one waits for an answer.
    """
    stream: Any = client.scheduler_comm
    return type(stream) is SharedBatchedSend and stream.flush_in_thread()


def _is_thread_of(client: Client) -> bool:
    """Tell whether this thread is one of a program that uses a client from without its loop."""
    return (
        not client._asynchronous
        and asyncio._get_running_loop() is None
        and client.status == "running"
        # Messages that waited for the connection go first.
        and not client._pending_msg_buffer
    )
