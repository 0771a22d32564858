"""Claims ``ucx://`` and ``ucxx://`` for Backhaul: a preload of `backhaul.dask.comm.ucx_scheme`.

::

    dask scheduler --preload backhaul.dask.ucx_preload --protocol ucx
    dask worker --preload backhaul.dask.ucx_preload ucx://host:port

Dask imports it before a server reads its addresses, which is when it counts.
"""

from __future__ import annotations

from backhaul.dask.comm.ucx_scheme import claim_ucx

__all__: list[str] = []

claim_ucx()
