"""Inputs of shuffles, before Dask adds the column of partition numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pandas as pd

from backhaul.dask.compat.names import (
    Assign,
    AssignPartitioningIndex,
    Fused,
    P2PShuffle,
    Projection,
    SetPartitionsPreSetIndex,
)
from backhaul.dask.exchange.assignments import Assignment, ByDivisions, ByHash, raw_divisions
from backhaul.dask.exchange.columns import field_of

__all__ = ["Unassigned", "unassigned_of"]


@dataclass(frozen=True)
class Unassigned:
    """The input of a shuffle without the column of partition numbers.

    Parameters
    ----------
    frame : Expr
        The input.
    assignment : Assignment
        How its rows get their numbers.
    is_fused : bool
        Whether the tasks of `frame` are in the graph only if the exchange adds them.
    """

    frame: Any
    assignment: Assignment
    is_fused: bool


def unassigned_of(expr: Any) -> Unassigned | None:
    """Find the input of a P2P shuffle; None if the column of partition numbers has to be there."""
    if type(expr) is not P2PShuffle:
        return None
    fused = list(expr.frame.exprs) if type(expr.frame) is Fused else []
    assign = fused[0] if fused else expr.frame
    if type(assign) is AssignPartitioningIndex:
        assignment = _by_hash(assign, expr.partitioning_index)
    elif type(assign) is Assign:
        assignment = _by_divisions(assign, expr.partitioning_index)
    else:
        return None
    if assignment is None:
        return None
    frame = _without_assignment(expr.frame, assign.frame) if fused else assign.frame
    if frame is None or (not fused and type(assignment) is ByDivisions):
        return None
    return Unassigned(frame, assignment, is_fused=frame._name not in _dependencies(expr.frame))


def _by_hash(assign: Any, number_column: Any) -> Assignment | None:
    frame, keys = assign.frame, assign.partitioning_index
    if number_column != assign.index_name or frame.ndim != 2 or not isinstance(keys, list):
        return None
    arguments = tuple(assign.operands[1:])
    if assign.index_shuffle:
        return ByHash(None, arguments)
    is_columns = all(isinstance(key, str) and key in frame._meta.columns for key in keys)
    if not keys or not is_columns or len(set(keys)) != len(keys):
        return None
    return ByHash(tuple(keys), arguments)


def _by_divisions(assign: Any, number_column: Any) -> Assignment | None:
    frame, *assigned = assign.operands
    if len(assigned) != 2 or assigned[0] != number_column or number_column in frame.columns:
        return None
    sort = assigned[1]
    if type(sort) is not SetPartitionsPreSetIndex or frame.ndim != 2:
        return None
    key, divisions = sort.frame.columns[0], sort.new_divisions
    if not isinstance(divisions, pd.Series) or not _is_column(sort.frame, key, frame):
        return None
    field = field_of(key, frame._meta[key].dtype)
    raw = None if field is None else raw_divisions(divisions, field)
    if raw is None:
        return None
    return ByDivisions(number_column, key, (divisions, sort.ascending, sort.na_position), raw)


def _is_column(column: Any, name: Any, frame: Any) -> bool:
    """Tell whether an expression of one column is that column of a frame."""
    if not isinstance(name, str) or column.ndim != 1 or list(frame.columns).count(name) != 1:
        return False
    if type(column) is Projection:
        source = column.frame
        is_part = type(frame) is Projection and frame.frame._name == source._name
        return is_part or bool(source._name == frame._name)
    # Dask has readers of files read the columns that are needed.
    choice = {"columns", "_series"}
    if type(column) is not type(frame) or not choice <= set(frame._parameters):
        return False
    same = column.substitute_parameters({each: frame.operand(each) for each in choice})
    return bool(same._name == frame._name)


def _without_assignment(fused: Any, frame: Any) -> Any:
    """Return a part of fused tasks: those that `frame` needs; None if others would stay unread."""
    group = {each._name: each for each in fused.exprs}
    needed, stack = set(), [frame._name]
    while stack:
        name = stack.pop()
        if name not in needed:
            needed.add(name)
            stack.extend(_dependencies(group[name]) if name in group else ())
    outside = [each for each in fused.dependencies() if each._name in needed]
    if len(outside) != len(fused.dependencies()):
        return None
    rest = [each for each in fused.exprs if each._name in needed]
    if not rest:
        return next((each for each in outside if each._name == frame._name), None)
    if rest[0]._name != frame._name:
        return None
    return frame if len(rest) == 1 else Fused(rest, *outside)


def _dependencies(expr: Any) -> list[str]:
    return [each._name for each in expr.dependencies()]
