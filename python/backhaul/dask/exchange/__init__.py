"""Exchange of rows between partitions and of parts between chunks, in the place of Dask's P2P.

Plain tasks replace the P2P protocol where all workers share memory. *Transfer* groups the rows of
an input partition by output partition in one *block*. *Bundle* collects the blocks of a frame.
*Unpack* concatenates the pieces of an output partition, and merges. A chunk of a rechunked array is
assembled from the input chunks that it overlaps.

Entry points: `cluster` decides where the exchange applies; `graphs.exchange_layer` makes the tasks
of dataframes, `arrays.direct_graph` those of arrays; `tasks` has the functions, `blocks` the data,
`joins` merges outputs, `unassigned` and `assignments` take partition numbers from Dask, `columns`
and `hashing` convert for the kernels (``crates/exchange``).

Threads: graphs are made in Dask's offload thread, which asks the event loop of the scheduler about
the workers. Tasks run in threads of workers, and the kernels release the GIL.

Locks: none.

Invariants: output partitions equal those of P2P in rows, order, index and types. Tasks have no
state outside of their inputs, so that Dask recomputes what a lost worker had. The number of Python
objects grows with the number of partitions, not with its square.
"""

from __future__ import annotations
