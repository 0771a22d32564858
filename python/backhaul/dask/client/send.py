"""Sending of messages by the threads of a program, in the place of the client's event loop.

The event loop of a client runs in a separate thread, and in Dask the program's threads hand all
work to it. For a small task that is two hand-overs there and two back, each with a wake-up and a
wait for the GIL. Here a thread of the program sends the tasks that it submits
(`backhaul.dask.comm.threaded_stream`), unless the event loop has earlier messages to send.

Asynchronous clients, and threads that run an event loop, send as in Dask.
"""

from __future__ import annotations

import asyncio
from typing import Any

from backhaul.dask.client.outgoing_queue import outbox_of
from backhaul.dask.comm.threaded_stream import SharedBatchedSend
from backhaul.dask.compat.names import Client

__all__ = ["send_what_is_queued", "sent_in_thread"]


def sent_in_thread(client: Client, message: dict[str, Any]) -> bool:
    """Send a message of a running client, whose scheduler supports it, in this thread.

    Returns False if the event loop has to send the message; nothing was sent.
    """
    stream: Any = client.scheduler_comm
    if type(stream) is not SharedBatchedSend or not _is_thread_of(client):
        return False
    outbox = outbox_of(client)
    # Messages that this thread has given to the event loop are sent first.
    if outbox.holds_up() or not stream.send_in_thread(message):
        return False
    outbox.look_often()
    return True


def send_what_is_queued(client: Client) -> bool:
    """Send the messages that threads have queued for a batch, because this thread is about to wait.

    Tells whether threads have sent messages since the last call, so that an answer may come soon.
    """
    stream: Any = client.scheduler_comm
    return type(stream) is SharedBatchedSend and stream.flush_in_thread()


def _is_thread_of(client: Client) -> bool:
    """Tell whether this thread uses a client that is synchronous, and runs no event loop."""
    return (
        not client._asynchronous
        and asyncio._get_running_loop() is None
        and client.status == "running"
        # Messages that waited for the connection are sent first.
        and not client._pending_msg_buffer
    )
