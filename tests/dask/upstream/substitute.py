"""Puts other classes in the place of Dask's TCP comm, so that its own tests run over them.

The classes keep the schemes ``tcp://`` and ``tls://``, because upstream's tests write them out. The
environment variable ``BACKHAUL_SUBSTITUTE`` names them:

``control``
    Sub-classes of Dask's own TCP classes: tests that fail here fail because of the substitution, or
    on this machine, and say nothing about Backhaul.
``backhaul``
    Ours.
``work-in-hand``
    Dask's own, with `backhaul.dask.scheduler.window` installed in every scheduler.
``scheduler-core``
    Dask's own, with `backhaul.dask.scheduler.core` installed in every scheduler.
``scheduler-engine``
    Ours, with that installed, and its hot messages on the engine's thread.
``exchange``
    Ours, with the exchange in the place of P2P, though the addresses are not those of Backhaul.

With ``BACKHAUL_UNCHECKED`` workers do not validate each step, and neither they nor schedulers count
steps, as those of users: code that replaces Dask's only where no program follows steps runs then.
``unchecked`` has the state validated at the end of a test.

With this folder on ``PYTHONPATH``, ``sitecustomize`` beside this file arranges it in every process:
pytest's own and the children that a test starts, as the environment is passed on.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

VARIABLE = "BACKHAUL_SUBSTITUTE"

#: Set where steps are neither validated nor counted
UNCHECKED = "BACKHAUL_UNCHECKED"

#: Modules that are installed in every scheduler, by name
_IN_SCHEDULERS = {
    "work-in-hand": "backhaul.dask.scheduler.window",
    "scheduler-core": "backhaul.dask.scheduler.core.live_core",
}


def install() -> None:
    """Replace the classes and the registered backend; imports ``distributed`` if need be."""
    which = os.environ[VARIABLE]
    if os.environ.get(UNCHECKED):
        _uncheck()
    if which in _IN_SCHEDULERS:
        _install_in_schedulers(_IN_SCHEDULERS[which])
        return
    if which == "scheduler-engine":
        which = "backhaul"
        import dask

        dask.config.set({"distributed.comm.backhaul.hot-path.scheduler-engine": True})
        _install_in_schedulers(_IN_SCHEDULERS["scheduler-core"])
    if which == "exchange":
        which = "backhaul"
        _exchange_at_any_address()
    import distributed.comm.tcp as tcp
    from distributed.comm.registry import backends

    for scheme in ("tcp", "tls"):
        classes = {"control": _control, "backhaul": _backhaul}[which](scheme)
        for kind, ours in zip(("", "Connector", "Listener", "Backend"), classes, strict=True):
            setattr(tcp, scheme.upper() + kind, ours)
        backends[scheme] = classes[-1]()
    if which == "backhaul":
        _note_certificates()
    _teach_owners_to_upstream()


def _install_in_schedulers(module: str) -> None:
    """Call `install` of a module at the end of each scheduler's ``__init__``."""
    from distributed.scheduler import Scheduler

    # Now, as upstream's tests put the configuration back to what it was when they began.
    install_in = importlib.import_module(module).install
    initialize = Scheduler.__init__

    def install_after(self: Scheduler, *args: Any, **kwargs: Any) -> None:
        initialize(self, *args, **kwargs)
        install_in(self)

    setattr(Scheduler, "__init__", install_after)  # noqa: B010


def _uncheck() -> None:
    """Turn off validation and counting of steps in workers and schedulers, as outside of tests."""
    from distributed.scheduler import Scheduler
    from distributed.worker import Worker

    def add_to_init(kind: type[Any], attributes: dict[str, Any], part: str | None = None) -> None:
        initialize = kind.__init__

        def initialize_unchecked(self: Any, *args: Any, **kwargs: Any) -> None:
            initialize(self, *args, **kwargs)
            for name, value in attributes.items():
                setattr(getattr(self, part) if part else self, name, value)

        setattr(kind, "__init__", functools.wraps(initialize)(initialize_unchecked))  # noqa: B010

    add_to_init(Worker, {"validate": False, "transition_counter_max": False}, part="state")
    add_to_init(Scheduler, {"transition_counter_max": False})


def _exchange_at_any_address() -> None:
    """Let all workers report that they share memory: their processes are on this host."""
    from distributed import Worker

    from backhaul.dask.exchange import cluster, placing

    ability_of = cluster._ability_of

    def ability_on_this_host(worker: Worker) -> dict[str, Any]:
        return {**ability_of(worker), "host": placing.host_name()}

    setattr(cluster, "_ability_of", ability_on_this_host)  # noqa: B010


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


def _note_certificates() -> None:
    """Note the certificates of contexts that upstream's tests make without a `Security`.

    Ours takes them from the settings, of which there are none then.
    """
    import ssl

    from backhaul.dask.comm import tls
    from backhaul.dask.compat import activation

    of_context: dict[int, str] = {}

    def text(path: str | None) -> str | None:
        return None if path is None else Path(path).read_text(encoding="ascii")

    class Noting(ssl.SSLContext):
        def load_verify_locations(
            self, cafile: Any = None, capath: Any = None, cadata: Any = None
        ) -> None:
            load_verify_locations(self, cafile, capath, cadata)
            of_context[id(self)] = cadata or text(cafile) or ""

        def load_cert_chain(self, certfile: Any, keyfile: Any = None, password: Any = None) -> None:
            load_cert_chain(self, certfile, keyfile, password)
            ca = of_context.pop(id(self), None)
            if ca is not None:
                tls._wanted[self] = tls._Wanted(
                    ca, text(certfile) or "", text(keyfile), "1.2", "1.3", None
                )

    load_verify_locations = ssl.SSLContext.load_verify_locations
    load_cert_chain = ssl.SSLContext.load_cert_chain
    for name in ("load_verify_locations", "load_cert_chain"):
        setattr(ssl.SSLContext, name, vars(Noting)[name])
    # Of those that a Security makes it notes more.
    activation.install(only="tls.note-settings")


def _control(scheme: str) -> tuple[type[Any], ...]:
    from distributed.comm import tcp

    def derived(kind: str, **attributes: Any) -> type[Any]:
        return type(kind or "Comm", (getattr(tcp, scheme.upper() + kind),), attributes)

    comm = derived("")
    connector = derived("Connector", comm_class=comm)
    listener = derived("Listener", comm_class=comm)
    backend = derived("Backend", _connector_class=connector, _listener_class=listener)
    return comm, connector, listener, backend


def _backhaul(scheme: str) -> tuple[type[Any], ...]:
    from backhaul.dask import BackhaulBackend, BackhaulComm, BackhaulConnector, BackhaulListener

    class Comm(BackhaulComm):
        def _read_extra(self) -> None:
            """Stand in for the method of the replaced class that Dask's TLS class calls."""

    class Connector(BackhaulConnector):
        prefix = f"{scheme}://"
        is_encrypted = scheme == "tls"
        comm_class = Comm

    class Listener(BackhaulListener):
        prefix = f"{scheme}://"
        is_encrypted = scheme == "tls"
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
