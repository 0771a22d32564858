"""Joins by the kernels, in the place of pandas' merge of two assembled frames.

The kernels join on one column of each frame, of the same type, and gather the rows from the blocks.
pandas merges everything else, and the results are equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from backhaul._native import Join
from backhaul.dask.exchange.blocks import Block, FileBlock
from backhaul.dask.exchange.columns import Field, Schema

__all__ = ["JoinPlan", "join_plan"]


@dataclass(frozen=True, slots=True)
class JoinPlan:
    """How the kernels merge two output partitions.

    The *first* frame orders the rows of the result: the right one of a right join, or the left one.

    Parameters
    ----------
    is_swapped : bool
        Whether the right frame is the first.
    keeps_first : bool
        Whether rows of the first frame without a partner are in the result.
    keys : tuple of int
        The columns with the keys, in the first and in the second frame.
    sources : tuple of (bool, int)
        For each column of the result, whether it is of the second frame, and its number there.
    schema : Schema
        The result, where no row of the second frame is missing.
    """

    is_swapped: bool
    keeps_first: bool
    keys: tuple[int, int]
    sources: tuple[tuple[bool, int], ...]
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
        join = Join.of_slot(first, second, slot, self.keys, self.keeps_first)
        rows = join.rows
        fields = [
            _with_missing(field) if join.has_missing and is_second else field
            for field, (is_second, _) in zip(self.schema.fields, self.sources, strict=True)
        ]
        targets = [
            field.targets(rows, join.text_bytes(*source))
            for field, source in zip(fields, self.sources, strict=True)
        ]
        nulls = join.gather(first, second, self.sources, targets)
        values = [
            field.values(target, rows, count)
            for field, target, count in zip(fields, targets, nulls, strict=True)
        ]
        index: Any = pd.RangeIndex(rows)
        if not rows:
            index = index.astype(self.schema.index.dtype)
        return self.schema.frame(values, index)


def join_plan(left: Schema, right: Schema, options: dict[str, Any]) -> JoinPlan | None:
    """Plan a merge by the kernels; None if pandas has to merge.

    Parameters
    ----------
    left, right : Schema
        The two frames.
    options : dict
        Arguments of `dask.dataframe.multi.merge_chunk`.
    """
    how, meta = options["how"], options["result_meta"]
    names = [_only(options["left_on"]), _only(options["right_on"])]
    if (
        how not in ("inner", "left", "right")
        or options["indicator"]
        or options["left_index"]
        or options["right_index"]
        or None in names
    ):
        return None
    schemas, is_swapped = [left, right], how == "right"
    keys = [_number(*each) for each in zip(schemas, names, strict=True)]
    key = left.fields[keys[0]]
    if key.dtype != right.fields[keys[1]].dtype:
        return None
    # A key of one name is one column of the result, in the place of the left one.
    shared = (1, keys[1]) if names[0] == names[1] else None
    found = [(0, number) for number in range(len(left.fields))]
    if shared is not None and is_swapped:
        # Upstream has the left key where there is one, which differs for zeros.
        if key.dtype.kind == "f":
            return None
        found = [shared if each == (0, keys[0]) else each for each in found]
    found += [each for number in range(len(right.fields)) if (each := (1, number)) != shared]
    sources = tuple(((side == 1) != is_swapped, number) for side, number in found)
    fields = [schemas[side].fields[number] for side, number in found]
    lacks_bool = all(
        field.kind != "bool" or not is_second
        for field, (is_second, _) in zip(fields, sources, strict=True)
    )
    # pandas makes objects of booleans where some are missing.
    if len(fields) != len(meta.columns) or not (how == "inner" or lacks_bool):
        return None
    renamed = tuple(
        replace(field, name=name) for field, name in zip(fields, meta.columns, strict=True)
    )
    index = Field(None, meta.index.dtype, "int64")
    return JoinPlan(
        is_swapped=is_swapped,
        keeps_first=how != "inner",
        keys=(keys[1], keys[0]) if is_swapped else (keys[0], keys[1]),
        sources=sources,
        schema=Schema(index, renamed, meta.columns),
    )


def _with_missing(field: Field) -> Field:
    """Return the type that pandas gives a column where rows are missing."""
    if isinstance(field.dtype, np.dtype) and field.dtype.kind in "iu":
        return Field(field.name, np.dtype("f8"), "float64")
    return field


def _only(on: Any) -> Any:
    """Return the only key of a merge; None if there are several."""
    names = on if isinstance(on, list) else [on]
    return names[0] if len(names) == 1 else None


def _number(schema: Schema, name: str) -> int:
    return [field.name for field in schema.fields].index(name)
