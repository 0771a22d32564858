"""Upstream's scheduler with sets that list their members in the order of their addition.

Python's sets list theirs by hashes, and which worker is taken of equal ones, or which task goes
first, hangs on that. `pin` loads the modules below from their
own sources with every set replaced by one in order: no line of logic changes, and no choice
is left to hashes. It must be called before anything imports ``distributed``.
"""

from __future__ import annotations

import ast
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Iterable, Iterator, MutableSet
from types import CodeType, ModuleType
from typing import Any

__all__ = ["OrderedSet", "pin"]

MODULES = ("distributed.scheduler", "distributed.collections", "distributed.stealing")


class OrderedSet(MutableSet[Any]):
    """A set in the order of additions, with the methods of ``set`` that upstream uses."""

    __slots__ = ("members",)

    def __init__(self, members: Iterable[Any] = ()) -> None:
        self.members = dict.fromkeys(members)

    def __contains__(self, member: object) -> bool:
        return member in self.members

    def __iter__(self) -> Iterator[Any]:
        return iter(self.members)

    def __len__(self) -> int:
        return len(self.members)

    def __and__(self, other: Any) -> OrderedSet:
        return OrderedSet(member for member in self.members if member in other)

    def __iand__(self, other: Any) -> OrderedSet:
        self.members = {member: None for member in self.members if member in other}
        return self

    def add(self, member: Any) -> None:
        self.members[member] = None

    def discard(self, member: Any) -> None:
        self.members.pop(member, None)

    def remove(self, member: Any) -> None:
        del self.members[member]

    def pop(self) -> Any:
        return self.members.popitem()[0]

    def clear(self) -> None:
        self.members.clear()

    def copy(self) -> OrderedSet:
        return OrderedSet(self.members)

    def update(self, *others: Iterable[Any]) -> None:
        for other in others:
            self.members.update(dict.fromkeys(other))

    def union(self, *others: Iterable[Any]) -> OrderedSet:
        united = self.copy()
        united.update(*others)
        return united

    def intersection(self, *others: Any) -> OrderedSet:
        return OrderedSet(m for m in self.members if all(m in other for other in others))

    def difference(self, other: Any) -> OrderedSet:
        return OrderedSet(member for member in self.members if member not in other)

    def issubset(self, other: Any) -> bool:
        return all(member in other for member in self.members)

    def issuperset(self, other: Iterable[Any]) -> bool:
        return all(member in self.members for member in other)

    def __repr__(self) -> str:
        return f"OrderedSet({list(self.members)!r})"


class _Pins(ast.NodeTransformer):
    """Writes ``{a, b}`` and ``{x for x in y}`` as calls of ``set``."""

    def visit_Set(self, node: ast.Set) -> ast.AST:
        self.generic_visit(node)
        members = ast.List(elts=node.elts, ctx=ast.Load())
        return self._call(node, members)

    def visit_SetComp(self, node: ast.SetComp) -> ast.AST:
        self.generic_visit(node)
        return self._call(node, ast.GeneratorExp(elt=node.elt, generators=node.generators))

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        if node.value is not None:
            node.value = self.visit(node.value)
        return node

    @staticmethod
    def _call(node: ast.expr, members: ast.expr) -> ast.AST:
        name = ast.Name(id="set", ctx=ast.Load())
        call = ast.Call(func=name, args=[members], keywords=[])
        return ast.fix_missing_locations(ast.copy_location(call, node))


class _Loader(importlib.machinery.SourceFileLoader):
    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        tree = _Pins().visit(ast.parse(self.get_data(path), path))
        return compile(tree, path, "exec", dont_inherit=True)

    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        # Functions look it up when they run; annotations were read before.
        module.__dict__["set"] = OrderedSet


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        if fullname not in MODULES:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.origin is not None:
            spec.loader = _Loader(fullname, spec.origin)
        return spec


def pin() -> None:
    """Make upstream's scheduler keep its sets in order.

    Raises
    ------
    RuntimeError
        If ``distributed`` is imported already.
    """
    if any(name in sys.modules for name in MODULES):
        raise RuntimeError("upstream's scheduler is imported already, with sets by hashes")
    sys.meta_path.insert(0, _Finder())
