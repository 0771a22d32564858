"""Import hook of Dask: applies two keys of the configuration to programs that name no Backhaul.

- ``distributed.comm.default-scheme``: Dask applies it to addresses without a scheme, but not to
  `LocalCluster`. Where it is ``backhaul``, `LocalCluster` follows it too.
- ``distributed.comm.backhaul.secret`` and ``secret-file``: where one is set, servers of Dask that
  listen on a port which the secret does not protect log a warning.

This module is an entry point of the group ``dask.sizeof``, which Dask loads when it is imported. It
imports nothing else of Backhaul. Where none of these keys is set, it changes nothing.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

__all__ = ["register"]

_CLUSTERS = "distributed.deploy.local"
_SERVERS = "distributed.core"
_SECRETS = ("distributed.comm.backhaul.secret", "distributed.comm.backhaul.secret-file")


def register(sizeof: object) -> None:
    """Watch for modules of Dask that keys of the configuration concern; called by Dask.

    Parameters
    ----------
    sizeof : object
        Group that plugins register with; not used.
    """
    import dask.config

    scheme = dask.config.get("distributed.comm.default-scheme", None)
    if isinstance(scheme, str) and scheme.startswith("backhaul"):
        # It cannot be imported yet: Dask is in the middle of its own import.
        sys.meta_path.insert(0, _Watch(_CLUSTERS, heed_default_scheme))
    if any(dask.config.get(key, None) is not None for key in _SECRETS):
        sys.meta_path.insert(0, _Watch(_SERVERS, heed_secret))


class _Watch(MetaPathFinder):
    """Calls a function with one module as soon as that has been imported.

    Parameters
    ----------
    name : str
        Of the module.
    follow : callable
        Called with the module.
    """

    def __init__(self, name: str, follow: Callable[[ModuleType], None]) -> None:
        self._name = name
        self._follow = follow

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Let the others find the module, and add what is to follow."""
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module
        follow = self._follow

        def execute_and_heed(module: ModuleType) -> None:
            execute(module)
            follow(module)

        spec.loader.exec_module = execute_and_heed  # type: ignore[method-assign]
        return spec


def heed_default_scheme(module: ModuleType) -> None:
    """Let the local clusters of Dask's module begin with the default scheme, if that is Backhaul's.

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


def heed_secret(module: ModuleType) -> None:
    """Make Dask's servers warn of listeners that the secret does not protect.

    Parameters
    ----------
    module : module
        ``distributed.core``. A second call has no effect.
    """
    import functools
    from typing import Any

    server: Any = module.Server
    upstream = server.listen
    if hasattr(upstream, "__wrapped__"):
        return

    @functools.wraps(upstream)
    async def listen(self: Any, *args: Any, **kwargs: Any) -> None:
        await upstream(self, *args, **kwargs)
        from backhaul.dask.comm.exposed_ports import warn_of_listeners

        warn_of_listeners(self)

    server.listen = listen


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
