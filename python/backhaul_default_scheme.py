"""Has Dask's `LocalCluster` heed ``distributed.comm.default-scheme`` where that is Backhaul's.

Dask heeds that key for addresses without a scheme, but not in `LocalCluster`, so nobody could have
a local cluster speak ``backhaul://`` without changing a program. This module is an entry point of
the group ``dask.sizeof``, which Dask loads when it is imported. It is a module of its own, so that
nothing else of Backhaul is imported then; and unless the key says ``backhaul``, it does nothing.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

__all__ = ["register"]

_MODULE = "distributed.deploy.local"


def register(sizeof: object) -> None:
    """Watch for Dask's local clusters, if the configuration asks for Backhaul; called by Dask.

    Parameters
    ----------
    sizeof : object
        What plugins of this group register with; not used.
    """
    import dask.config

    scheme = dask.config.get("distributed.comm.default-scheme", None)
    if isinstance(scheme, str) and scheme.startswith("backhaul"):
        # It cannot be imported yet: Dask is in the middle of its own import.
        sys.meta_path.insert(0, _Watch())


class _Watch(MetaPathFinder):
    """Waits for one import, and then is gone."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Let the others find the module, and add what is to follow."""
        if fullname != _MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_and_heed(module: ModuleType) -> None:
            execute(module)
            heed_default_scheme(module)

        spec.loader.exec_module = execute_and_heed  # type: ignore[method-assign]
        return spec


def heed_default_scheme(module: ModuleType) -> None:
    """Have the local clusters of Dask's module begin with the default scheme, if that is ours.

    Parameters
    ----------
    module : module
        ``distributed.deploy.local``. Again is without effect.
    """
    import functools
    import inspect
    from typing import Any

    cluster: Any = module.LocalCluster
    upstream = cluster.__init__
    if hasattr(upstream, "__wrapped__"):
        return
    signature = inspect.signature(upstream)

    @functools.wraps(upstream)
    def begin(self: Any, *args: Any, **kwargs: Any) -> None:
        given = signature.bind_partial(self, *args, **kwargs).arguments
        scheme = _scheme_for(given)
        if scheme is not None:
            kwargs["protocol"] = scheme
        upstream(self, *args, **kwargs)

    cluster.__init__ = begin


def _scheme_for(given: dict[str, object]) -> str | None:
    """Tell what a cluster shall speak for which nothing was said; None to leave it to Dask."""
    import dask.config
    from distributed import Nanny

    scheme = dask.config.get("distributed.comm.default-scheme", None)
    if not isinstance(scheme, str) or not scheme.startswith("backhaul"):
        return None
    if given.get("protocol") is not None or "://" in str(given.get("host") or ""):
        return None
    worker_class = given.get("worker_class")
    processes = given.get("processes")
    if processes is None:
        processes = worker_class is None or (
            isinstance(worker_class, type) and issubclass(worker_class, Nanny)
        )
    # Within one process Dask uses no sockets at all, unless others are to reach it.
    if not processes and not given.get("scheduler_port"):
        return None
    return f"{scheme.removesuffix('://')}://"
