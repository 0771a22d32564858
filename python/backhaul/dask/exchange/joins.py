"""Joins by the kernels, in the place of pandas' merge of two assembled frames.

The kernels join on columns of equal types, and gather the rows from the blocks. pandas merges
everything else, and the results are equal.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from backhaul._native import Join
from backhaul.dask.exchange.blocks import Block, FileBlock
from backhaul.dask.exchange.columns import Field, Schema, filled_columns

__all__ = ["JoinPlan", "join_plan"]

#: Whether a column is of the second frame, its number, and the column that replaces missing rows
Source: TypeAlias = tuple[bool, int, int | None]

#: Joins of `backhaul._native.Join.of_slot` for those of Dask
_HOW = {"inner": "inner", "left": "left", "right": "left", "outer": "outer", "leftsemi": "semi"}


@dataclass(frozen=True, slots=True)
class JoinPlan:
    """How the kernels merge two output partitions.

    The *first* frame orders the rows of the result: the right one of a right join, or the left one.

    Parameters
    ----------
    is_swapped : bool
        Whether the right frame is the first.
    how : str
        The join, as `backhaul._native.Join.of_slot` takes it.
    keys : tuple of tuple of int
        The columns with the keys, in the first and in the second frame.
    sources : tuple of (bool, int, int or None)
        For each column of the result, whether it is of the second frame, the number of its first
        part there, and the column of the other frame that replaces missing rows.
    schema : Schema
        The result, where no row is missing.
    """

    is_swapped: bool
    how: str
    keys: tuple[tuple[int, ...], tuple[int, ...]]
    sources: tuple[Source, ...]
    schema: Schema

    def merged(
        self,
        left: Sequence[Block | FileBlock],
        right: Sequence[Block | FileBlock],
        slot: int,
    ) -> pd.DataFrame:
        """Merge an output partition.

        Parameters
        ----------
        left, right : sequence of Block or FileBlock
            The blocks of both frames, at least one of each.
        slot : int
            Which output partition.
        """
        sides = [[block.piece(slot) for block in blocks] for blocks in (left, right)]
        first, second = reversed(sides) if self.is_swapped else sides
        parts = self._part_sources()
        join = Join.of_slot(first, second, slot, self.keys, self.how, parts)
        rows = join.rows
        has_missing = [join.has_missing(is_second) for is_second in (False, True)]
        fields = [
            _with_missing(field) if other is None and has_missing[is_second] else field
            for field, (is_second, _, other) in zip(self.schema.fields, self.sources, strict=True)
        ]
        fill = functools.partial(join.gather, first, second)
        values = filled_columns(fields, rows, join.text_bytes, fill)
        index: Any = pd.RangeIndex(rows)
        if not rows:
            index = index.astype(self.schema.index.dtype)
        return self.schema.frame(values, index)

    def _part_sources(self) -> list[Source]:
        """List the sources of all parts of the columns."""
        return [
            (is_second, first + place, other)
            for field, (is_second, first, other) in zip(
                self.schema.fields, self.sources, strict=True
            )
            for place in range(len(field.parts))
        ]


def join_plan(left: Schema, right: Schema, options: dict[str, Any]) -> JoinPlan | None:
    """Plan a merge by the kernels; None if pandas has to merge.

    Parameters
    ----------
    left, right : Schema
        The two frames.
    options : dict
        Arguments of `dask.dataframe.multi.merge_chunk`.
    """
    how, meta = _HOW.get(options["how"]), options["result_meta"]
    names = [_names(options["left_on"]), _names(options["right_on"])]
    if (
        how is None
        or options["indicator"]
        or options["left_index"]
        or options["right_index"]
        or any(len(set(each)) != len(each) for each in names)
        # Dask drops repeated rows of the right frame, which are repeated keys only without others.
        or (how == "semi" and set(names[1]) != {field.name for field in right.fields})
    ):
        return None
    schemas = [left, right]
    keys = [_numbers(schema, each) for schema, each in zip(schemas, names, strict=True)]
    types = _types(left, keys[0])
    if types != _types(right, keys[1]) or any(
        left.fields[number].has_own_missing for number in keys[0]
    ):
        return None
    sources, fields = _columns(schemas, keys, options["how"])
    if len(fields) != len(meta.columns) or any(
        field.has_own_missing and _may_miss(how, is_second=is_second)
        for field, (is_second, _, _) in zip(fields, sources, strict=True)
    ):
        return None
    renamed = tuple(
        replace(field, name=name) for field, name in zip(fields, meta.columns, strict=True)
    )
    index = Field(None, meta.index.dtype, "int64")
    is_swapped = options["how"] == "right"
    order = (1, 0) if is_swapped else (0, 1)
    numbers = [_first_parts(schemas[side]) for side in order]
    key_parts = [
        tuple(each[number] for number in keys[side])
        for each, side in zip(numbers, order, strict=True)
    ]
    return JoinPlan(
        is_swapped=is_swapped,
        how=how,
        keys=(key_parts[0], key_parts[1]),
        sources=tuple(
            (
                is_second,
                numbers[is_second][number],
                None if other is None else numbers[not is_second][other],
            )
            for is_second, number, other in sources
        ),
        schema=Schema(index, renamed, meta.columns),
    )


def _columns(
    schemas: Sequence[Schema], keys: Sequence[tuple[int, ...]], how: str
) -> tuple[tuple[Source, ...], list[Field]]:
    """List the columns of a result in the order of pandas, and their types.

    A key of one name is one column of the result, in the place of the left one. Upstream has the
    left key where there is one.
    """
    left, right = schemas
    shared = {
        number: other
        for number, other in zip(*keys, strict=True)
        if left.fields[number].name == right.fields[other].name
    }
    is_swapped = how == "right"
    replaces = how in ("right", "outer")
    sources: list[Source] = [
        (is_swapped, number, shared.get(number) if replaces else None)
        for number in range(len(left.fields))
    ]
    others = [number for number in range(len(right.fields)) if number not in shared.values()]
    sources += [(not is_swapped, number, None) for number in others]
    return tuple(sources), [*left.fields, *(right.fields[number] for number in others)]


def _first_parts(schema: Schema) -> list[int]:
    """Return the number of the first part of each column."""
    return list(itertools.accumulate((len(field.parts) for field in schema.fields), initial=0))


def _may_miss(how: str, *, is_second: bool) -> bool:
    """Tell whether rows of a frame may be missing in the result."""
    return how == "outer" or (how == "left" and is_second)


def _with_missing(field: Field) -> Field:
    """Return the type that pandas gives a column where rows are missing."""
    if field.kind == "bool":
        return Field(field.name, np.dtype(object), "missing_bool")
    if isinstance(field.dtype, np.dtype) and field.dtype.kind in "iu":
        return Field(field.name, np.dtype("f8"), "float64")
    return field


def _names(on: Any) -> list[Any]:
    """List the keys of a merge."""
    return on if isinstance(on, list) else [on]


def _numbers(schema: Schema, names: Sequence[str]) -> tuple[int, ...]:
    fields = [field.name for field in schema.fields]
    return tuple(map(fields.index, names))


def _types(schema: Schema, numbers: Sequence[int]) -> list[Any]:
    return [schema.fields[number].dtype for number in numbers]
