"""Every name of ``distributed`` that we touch and that its documentation does not promise.

``distributed`` is held to releases that were tested for the sake of this list: when another one is
allowed, read each name here again. The rest of the room imports these names from here and from
nowhere else; what it imports from ``distributed`` directly is documented.

Read for 2026.7.1 and 2026.8.0. Between them nothing changed in the modules below, nor in the rest
of ``distributed.comm``, ``protocol``, ``shuffle``, ``batched`` and ``client``. What did: ``nanny``
(one closes though its process does not end), ``node``, ``scheduler`` and ``worker`` (HTTP services
are stopped by awaiting) and ``spans``.

Besides the names below we depend on two facts that no import shows:

- ``distributed.comm.core.connect`` reads ``comm._peer_addr`` and ``comm._local_addr``;
- ``BaseListener`` keeps the comms that are still shaking hands, and ``Server`` aborts them through
  ``listener.abort_handshaking_comms()`` when it stops.
"""

from __future__ import annotations

from distributed.comm.core import BaseListener, Comm, CommClosedError, Connector
from distributed.comm.core import FatalCommClosedError as FatalCommClosedError
from distributed.comm.core import Listener as DaskListener
from distributed.comm.registry import Backend, backends
from distributed.comm.utils import from_frames, to_frames
from distributed.core import ConnectionPool
from distributed.utils import ensure_memoryview, get_ip, get_ip_interface

__all__ = [
    "Backend",
    "BaseListener",
    "Comm",
    "CommClosedError",
    "ConnectionPool",
    "Connector",
    "DaskListener",
    "FatalCommClosedError",
    "backends",
    "ensure_memoryview",
    "from_frames",
    "get_ip",
    "get_ip_interface",
    "to_frames",
]
