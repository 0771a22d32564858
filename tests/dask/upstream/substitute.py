"""Puts other classes in the place of Dask's TCP comm, so that its own tests run over them.

The classes keep the scheme ``tcp://``, because upstream's tests write it out. The environment
variable ``BACKHAUL_SUBSTITUTE`` names them:

``control``
    Sub-classes of Dask's own TCP classes: tests that fail here fail because of the substitution, or
    on this machine, and say nothing about Backhaul.
``backhaul``
    Ours.
``work-in-hand``
    Dask's own, with `backhaul.dask.in_flight` installed in every scheduler.

With this folder on ``PYTHONPATH``, ``sitecustomize`` beside this file arranges it in every process:
pytest's own and the children that a test starts, as the environment is passed on.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

VARIABLE = "BACKHAUL_SUBSTITUTE"


def install() -> None:
    """Replace the classes and the registered backend; imports ``distributed`` if need be."""
    which = os.environ[VARIABLE]
    if which == "work-in-hand":
        _keep_workers_filled()
        return
    import distributed.comm.tcp as tcp
    from distributed.comm.registry import backends

    comm, connector, listener, backend = {"control": _control, "backhaul": _backhaul}[which]()
    for old, new in {
        "TCP": comm,
        "TCPConnector": connector,
        "TCPListener": listener,
        "TCPBackend": backend,
    }.items():
        setattr(tcp, old, new)
    backends["tcp"] = backend()
    _teach_owners_to_upstream()


def _keep_workers_filled() -> None:
    """Install work in hand at the end of each scheduler's ``__init__``."""
    from distributed.scheduler import Scheduler

    # Now, as upstream's tests put the configuration back to what it was when they began.
    from backhaul.dask.in_flight import install as install_work_in_hand

    initialize = Scheduler.__init__

    def install_after(self: Scheduler, *args: Any, **kwargs: Any) -> None:
        initialize(self, *args, **kwargs)
        install_work_in_hand(self)

    setattr(Scheduler, "__init__", install_after)  # noqa: B010


def _teach_owners_to_upstream() -> None:
    """Let upstream's test helper follow a buffer to an owner that is not an array.

    The helper returns the array that owns the memory of another, and knows arrays and byte strings
    only. For any other owner it now returns one array for each owner, over all of its memory.
    """
    try:
        import numpy as np
    except ImportError:
        return
    from distributed.protocol import utils_test

    arrays: dict[int, tuple[object, Any]] = {}

    def get_host_array(array: Any) -> Any:
        owner = array
        while isinstance(owner, np.ndarray | memoryview):
            base = owner.obj if isinstance(owner, memoryview) else owner.base
            if base is None:
                return owner
            owner = base
        if id(owner) not in arrays:
            arrays[id(owner)] = owner, np.frombuffer(owner, dtype="u1")
        return arrays[id(owner)][1]

    setattr(utils_test, "get_host_array", get_host_array)  # noqa: B010


def _control() -> tuple[type[Any], ...]:
    from distributed.comm import tcp

    class Comm(tcp.TCP):
        pass

    class Connector(tcp.TCPConnector):
        comm_class = Comm

    class Listener(tcp.TCPListener):
        comm_class = Comm

    class Backend(tcp.TCPBackend):
        _connector_class = Connector
        _listener_class = Listener

    return Comm, Connector, Listener, Backend


def _backhaul() -> tuple[type[Any], ...]:
    from backhaul.dask import BackhaulBackend, BackhaulComm, BackhaulConnector, BackhaulListener

    class Comm(BackhaulComm):
        def _read_extra(self) -> None:
            """Stand in for the method of the replaced class that Dask's TLS class calls."""

    class Connector(BackhaulConnector):
        prefix = "tcp://"
        comm_class = Comm

    class Listener(BackhaulListener):
        prefix = "tcp://"
        comm_class = Comm

    class Backend(BackhaulBackend):
        _connector_class = Connector
        _listener_class = Listener

    return Comm, Connector, Listener, Backend


class InstallAfterImport(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Waits for ``import distributed`` and installs once that is done.

    A child may never import it, or import it late; doing so here, at interpreter start, would
    change what such a child tests.
    """

    def __init__(self) -> None:
        self._spec: importlib.machinery.ModuleSpec | None = None

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Claim ``distributed``, once."""
        if fullname != "distributed":
            return None
        sys.meta_path.remove(self)
        self._spec = importlib.util.find_spec(fullname)
        if self._spec is None:
            return None
        return importlib.util.spec_from_loader(
            fullname,
            self,
            origin=self._spec.origin,
            is_package=True,
        )

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        """Use the module that would have been made."""
        assert self._spec is not None
        module = importlib.util.module_from_spec(self._spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Run the real module, then install."""
        assert self._spec is not None
        assert self._spec.loader is not None
        module.__spec__ = self._spec
        module.__loader__ = self._spec.loader
        self._spec.loader.exec_module(module)
        install()
