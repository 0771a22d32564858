"""Which package of `backhaul.dask` imports which, read in the sources.

Imports in functions, and those that only type checkers follow, count apart: the first are
forbidden, the second may form cycles, which are listed.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest

import backhaul.dask

ROOM = Path(backhaul.dask.__file__).parent
NAME = "backhaul.dask"

_BASE: Final = frozenset({"config", "compat"})
_TRANSPORT: Final = _BASE | {"comm", "serialize"}

#: Packages that the modules of a package may import, besides their own; a core has the list of its
#: parent, and the parent. The package itself, `backhaul.dask`, may import any.
ALLOWED: Final[dict[str, frozenset[str]]] = {
    "config": frozenset(),
    "compat": frozenset({"config"}),
    "serialize": frozenset({"compat"}),
    "comm": _BASE | {"serialize"},
    "observe": _TRANSPORT,
    "resource_pools": _BASE,
    "placement": _TRANSPORT | {"observe"},
    "client": _TRANSPORT,
    "scheduler": _TRANSPORT,
    "scheduler.core": _TRANSPORT | {"scheduler"},
    "worker": _TRANSPORT,
    "worker.core": _TRANSPORT | {"worker"},
    "exchange": _TRANSPORT | {"observe"},
    "local": _BASE | {"resource_pools"},
    "launch": _BASE,
}

#: Imports that break these rules: an import is removed from the list together with its reason, and
#: none is added
EXCEPTIONS: Final[dict[str, frozenset[str]]] = {
    "client.graph": frozenset({"resource_pools.requests"}),
    "client.map": frozenset({"resource_pools.requests"}),
    "client.submit": frozenset({"resource_pools.requests"}),
    "launch.announce": frozenset({"comm.addresses"}),
    "launch.option_checks": frozenset({"resource_pools.declarations"}),
    "launch.worker": frozenset({"comm.addresses", "resource_pools.declarations"}),
    "launch.worker_specs": frozenset({"resource_pools.declarations"}),
    "resource_pools.request_index": frozenset({"serialize.pickled_task"}),
    "resource_pools.scheduler_slots": frozenset({"serialize.pickled_task"}),
    "scheduler.core.eligibility": frozenset(
        {"placement.link_placement", "resource_pools.scheduler_slots"}
    ),
    "scheduler.core.graph_import": frozenset(
        {"resource_pools.requests", "resource_pools.scheduler_slots"}
    ),
    "scheduler.core.live_core": frozenset(
        {"placement.link_placement", "resource_pools.request_index"}
    ),
    "scheduler.core.placement": frozenset({"placement.link_placement"}),
    "scheduler.core.resources": frozenset(
        {
            "resource_pools.requests",
            "resource_pools.scheduler_slots",
            "resource_pools.worker_inventory",
        }
    ),
    "worker.core.events": frozenset({"resource_pools.requests"}),
    "worker.core.ownership": frozenset({"resource_pools.worker_state"}),
    "worker.early_reader": frozenset({"worker.core.events", "worker.core.ownership"}),
    "worker.execution": frozenset(
        {
            "resource_pools.leases",
            "resource_pools.worker_state",
            "worker.core.guarded_state",
            "worker.core.task_view",
        }
    ),
    "worker.instructions": frozenset(
        {"worker.core.dask_instructions", "worker.core.events", "worker.core.guarded_state"}
    ),
    "worker.local_queue": frozenset({"resource_pools.leases", "worker.core.task_view"}),
    "worker.state_checks": frozenset({"resource_pools.worker_state"}),
    "worker.task_start": frozenset(
        {
            "resource_pools.lease_context",
            "resource_pools.overflow_pool",
            "resource_pools.worker_state",
        }
    ),
    "worker.thread_events": frozenset({"worker.core.events"}),
}

#: Packages that a process may lack, which functions import
OPTIONAL: Final = ("bokeh", "distributed.dashboard", "opentelemetry", "pandas", "prometheus_client")

#: Other imports in functions, with their reason there
IN_FUNCTIONS: Final = {("launch.pinning", "backhaul.topology._json")}

#: Modules that import others of this package by a name that they compute, when a process needs them
BY_NAME: Final = {"__init__", "compat.features", "compat.patching", "exchange.cluster"}

#: Modules that are in a cycle once the imports count that only type checkers follow
TYPE_CYCLES: Final = {
    "scheduler.core.clients",
    "scheduler.core.engine_streams",
    "scheduler.core.group_views",
    "scheduler.core.guarded_classes",
    "scheduler.core.handlers",
    "scheduler.core.lazy_sets",
    "scheduler.core.live_core",
    "scheduler.core.payloads",
    "scheduler.core.plugin_bridge",
    "scheduler.core.replicas",
    "scheduler.core.requests",
    "scheduler.core.resources",
    "scheduler.core.spans",
    "scheduler.core.stealing",
    "scheduler.core.task_views",
    "scheduler.core.timers",
    "scheduler.core.unrunnable",
    "scheduler.core.window",
    "scheduler.core.workers",
}


class Import(NamedTuple):
    """An import of one module of the package by another."""

    module: str
    imported: str
    #: ``module``, ``function`` or ``type``
    kind: str


def modules() -> dict[str, Path]:
    """Return the files of the package by the name of the module below it."""
    found = {}
    for path in sorted(ROOM.rglob("*.py")):
        parts = path.relative_to(ROOM).with_suffix("").parts
        found[".".join(parts).removesuffix(".__init__")] = path
    return found


MODULES: Final = modules()


def package_of(module: str) -> str | None:
    """Return the package of a module; None for one that is in none."""
    packages = [each for each in ALLOWED if module == each or module.startswith(f"{each}.")]
    return max(packages, key=len, default=None)


def imported(node: ast.Import | ast.ImportFrom) -> Iterator[str]:
    """Return the modules of the package that a statement imports."""
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    else:
        assert node.level == 0, "a relative import"
        names = [f"{node.module}.{alias.name}" for alias in node.names]
    for name in names:
        if name == NAME or name.startswith(f"{NAME}."):
            below = name.removeprefix(NAME).removeprefix(".")
            while below not in MODULES and below:
                below = below.rpartition(".")[0]
            yield below or "__init__"


def imports(module: str, source: str) -> Iterator[Import]:
    """Return the imports of other modules of the package in a source, with their kinds."""

    def visit(node: ast.AST, kind: str) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.Import, ast.ImportFrom)):
                for name in imported(child):
                    if name != module:
                        yield Import(module, name, kind)
            elif isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
                yield from visit(child, "function")
            elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                yield from visit(child, "type")
            else:
                yield from visit(child, kind)

    return visit(ast.parse(source), "module")


def all_imports() -> list[Import]:
    return [each for name, path in MODULES.items() for each in imports(name, path.read_text())]


def breaks_rule(each: Import) -> bool:
    package, other = package_of(each.module), package_of(each.imported)
    if package is None or package == other:
        return False
    return other not in ALLOWED[package]


def cycles(edges: dict[str, set[str]]) -> list[set[str]]:
    """Return the strongly connected components of more than one module."""

    def reached(start: str, graph: dict[str, set[str]]) -> set[str]:
        found: set[str] = set()
        waiting = [start]
        while waiting:
            for each in graph.get(waiting.pop(), set()) - found:
                found.add(each)
                waiting.append(each)
        return found

    backwards: dict[str, set[str]] = {}
    for module, others in edges.items():
        for other in others:
            backwards.setdefault(other, set()).add(module)
    found: list[set[str]] = []
    for module in edges:
        if not any(module in each for each in found):
            component = reached(module, edges) & reached(module, backwards)
            if len(component) > 1:
                found.append(component)
    return found


def edges_of(*kinds: str) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for each in all_imports():
        if each.kind in kinds:
            found.setdefault(each.module, set()).add(each.imported)
    return found


def test_packages_import_only_what_they_may() -> None:
    found: dict[str, set[str]] = {}
    for each in all_imports():
        if each.kind != "type" and breaks_rule(each):
            found.setdefault(each.module, set()).add(each.imported)
    new = {
        module: left
        for module, names in found.items()
        if (left := names - EXCEPTIONS.get(module, frozenset()))
    }
    assert new == {}, "move the function, or pass the object in"
    gone = {
        module: unused
        for module, names in EXCEPTIONS.items()
        if (unused := names - found.get(module, set()))
    }
    assert gone == {}, "no longer needed"


def test_comm_and_serialize_have_no_exceptions() -> None:
    assert not {"comm", "serialize", "config", "compat"} & {
        package_of(module) for module in EXCEPTIONS
    }


def test_no_function_imports_a_module_of_the_package() -> None:
    assert [each for each in all_imports() if each.kind == "function"] == []


def test_functions_import_optional_packages_only() -> None:
    found = set()
    for module, path in MODULES.items():
        for function in ast.walk(ast.parse(path.read_text())):
            if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
                continue
            for node in ast.walk(function):
                if isinstance(node, ast.Import):
                    found |= {(module, alias.name) for alias in node.names}
                elif isinstance(node, ast.ImportFrom):
                    found.add((module, node.module or ""))
    assert ("observe.transfers", "pandas") in found
    others = {(module, name) for module, name in found if not name.startswith(OPTIONAL)}
    assert others == IN_FUNCTIONS


def test_modules_that_import_others_by_name_are_few() -> None:
    found = {
        name
        for name, path in MODULES.items()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func).endswith("import_module")
        and (f"{NAME}." in ast.unparse(node) or "_LAZY" in ast.unparse(node))
    }
    assert found == BY_NAME


def test_no_module_imports_itself_by_others() -> None:
    assert cycles(edges_of("module", "function")) == []


def test_cycles_that_only_type_checkers_see_become_fewer() -> None:
    found = {module for each in cycles(edges_of("module", "function", "type")) for module in each}
    assert found == TYPE_CYCLES


def test_each_package_has_a_short_description() -> None:
    for package in ALLOWED:
        described = ast.get_docstring(ast.parse(MODULES[package].read_text()))
        assert described is not None, package
        assert len(described.splitlines()) <= 25, package
        for part in ("Entry points", "Threads", "Locks", "Invariants"):
            assert f"{part}:" in described, f"{package}: {part}"


@pytest.mark.parametrize(
    ("module", "source", "kind"),
    [
        ("comm.comm", "from backhaul.dask.worker.execution import Execution", "module"),
        ("comm.comm", "from backhaul.dask.client import submit", "module"),
        ("comm.comm", "import backhaul.dask.scheduler.window", "module"),
        ("worker.runs", "def f():\n    from backhaul.dask.client import submit", "function"),
        ("launch.worker", "class A:\n    from backhaul.dask.client import submit", "module"),
        ("worker.core.events", "from backhaul.dask.scheduler.core import heap", "module"),
        (
            "client.submit",
            "if TYPE_CHECKING:\n    from backhaul.dask.worker import execution",
            "type",
        ),
    ],
)
def test_an_import_that_breaks_a_rule_is_found(module: str, source: str, kind: str) -> None:
    (found,) = imports(module, source)
    assert found.kind == kind
    assert breaks_rule(found)


def test_a_cycle_is_found() -> None:
    edges = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set()}
    assert cycles(edges) == [{"a", "b", "c"}]
