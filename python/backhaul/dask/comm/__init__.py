"""The comm of ``backhaul://`` and the streams over it.

Entry points: Dask finds `backend.BackhaulBackend` by an entry point; `comm.BackhaulComm` is one
connection; `inbox.SharedInbox` has the messages that have arrived; `batched_stream` and
`threaded_stream` take the place of Dask's `BatchedSend`; `native_context` has the context and the
arena of the process; `capabilities` says which messages a peer understands.

Threads: a comm belongs to the event loop that made it. Engine threads of the native module run no
Python. A thread of a client or a worker may read from an inbox in the place of the event loop, and
send on a `SharedBatchedSend`.

Locks: each inbox and each `SharedBatchedSend` has an `RLock`, because a finalizer may run in a
thread that holds one. `SharedBatchedSend.post_in_thread` and `send` never wait for that lock. The
lock of `native_context` is innermost: code that holds it takes no other lock of this package. A
forked process gets a new one, because another thread of its parent may have held the old one.

Invariants: messages of one stream are handled in the order of their sending, whichever thread
reads. Buffers are lent only where a reader cannot change what the sender sees. Modules here import
`compat`, `config` and `serialize`, and no other package.
"""
