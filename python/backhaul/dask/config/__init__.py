"""Settings of Backhaul under ``distributed.comm.backhaul``, read from Dask's configuration.

Entry points: `settings.Settings` and the functions beside it read values; `secret.read_secret`
reads the secret of a cluster; `ucx_options` reads the keys of programs that were written for UCX;
`default_scheme.enable` switches a program. The defaults are in ``backhaul-dask.yaml``.

Threads: any thread may read.

Locks: none.

Invariants: no module here imports another package of `backhaul.dask`. Importing `settings`
registers the defaults with Dask. A value is read when an object is made, not when a module is
imported, so ``dask.config.set`` has an effect on whatever is made after it.
"""
