"""Accelerations of Dask's client: submitting, waiting for results, and keeping small ones.

Entry points: `methods` installs on a client that connects `submit`, `map`, `graph` and `compute`
(compact messages), `blocking_gather`, `result_cache` (results that arrive with the news) and
`request_order`; patches of `Future` and `as_completed` call `blocking_wait` and `as_completed`.

Threads: a thread of the program sends by `send`; while it waits it may read the stream in the place
of the event loop (`reader_thread`), one thread at a time. All other work is done by the event loop;
`outgoing_queue` carries calls to it from threads and finalizers.

Locks: a thread that reads holds the lock of the inbox (`comm.inbox`) while it handles messages. The
locks of `result_cache` and `state_event` are taken after that one, and are innermost. Each waiting
thread has a separate lock in `thread_wait`, which another thread releases to wake it.

Invariants: a message is handled once, in order, by whichever thread reads. A message that the
scheduler does not understand is sent as Dask's own. A future has the state that Dask's client would
give it; a result is kept only while its future is finished.
"""
