"""Exchange of dataframe rows between partitions, in the place of Dask's P2P shuffle.

Plain tasks replace the P2P protocol where all workers share memory. *Transfer* groups the rows of
an input partition by output partition in one *block*. *Bundle* collects the blocks of a frame.
*Unpack* concatenates the pieces of an output partition, and merges.

Entry points: `cluster` decides where the exchange applies; `graphs.exchange_layer` makes the tasks;
`tasks` has their functions, `blocks` their data, `columns` and `hashing` convert for the kernels in
Rust (``crates/exchange``).

Threads: graphs are made in Dask's offload thread, which asks the event loop of the scheduler about
the workers. Tasks run in threads of workers, and the kernels release the GIL.

Locks: none.

Invariants: output partitions equal those of P2P in rows, order, index and types. Tasks have no
state outside of their inputs, so that Dask recomputes what a lost worker had. The number of Python
objects grows with the number of partitions, not with its square.
"""

from __future__ import annotations
