"""Every name of ``distributed`` that we touch and that its documentation does not promise.

``distributed`` is pinned to one release for the sake of this list: when the pin moves, read each
name here again. The rest of the room imports these names from here and from nowhere else; what it
imports from ``distributed`` directly is documented.

Besides the names below we depend on two facts that no import shows:

- ``distributed.comm.core.connect`` reads ``comm._peer_addr`` and ``comm._local_addr``;
- ``BaseListener`` keeps the comms that are still shaking hands, and ``Server`` aborts them through
  ``listener.abort_handshaking_comms()`` when it stops.
"""

from __future__ import annotations

from dask._task_spec import Alias, DataNode, Dict, List, Set, Task, TaskRef, Tuple
from distributed.comm.core import BaseListener, Comm, CommClosedError, Connector
from distributed.comm.core import FatalCommClosedError as FatalCommClosedError
from distributed.comm.core import Listener as DaskListener
from distributed.comm.registry import Backend, backends
from distributed.comm.utils import from_frames, to_frames
from distributed.core import ConnectionPool
from distributed.protocol import pickle
from distributed.protocol.compression import decompress, maybe_compress
from distributed.protocol.serialize import (
    Pickled,
    Serialize,
    Serialized,
    ToPickle,
    merge_and_deserialize,
    msgpack_decode_default,
    msgpack_encode_default,
    serialize_and_split,
)
from distributed.protocol.serialize import _is_msgpack_serializable as is_msgpack_serializable
from distributed.protocol.utils import msgpack_opts
from distributed.sizeof import safe_sizeof
from distributed.utils import ensure_memoryview, get_ip, get_ip_interface

__all__ = [
    "Alias",
    "Backend",
    "BaseListener",
    "Comm",
    "CommClosedError",
    "ConnectionPool",
    "Connector",
    "DaskListener",
    "DataNode",
    "FatalCommClosedError",
    "Pickled",
    "Serialize",
    "Serialized",
    "Task",
    "TaskRef",
    "ToPickle",
    "backends",
    "containers",
    "decompress",
    "ensure_memoryview",
    "from_frames",
    "get_ip",
    "get_ip_interface",
    "is_msgpack_serializable",
    "maybe_compress",
    "merge_and_deserialize",
    "msgpack_decode_default",
    "msgpack_encode_default",
    "msgpack_opts",
    "pickle",
    "safe_sizeof",
    "serialize_and_split",
    "to_frames",
]

#: Tasks that make a collection of their arguments.
containers = (List, Tuple, Set, Dict)
