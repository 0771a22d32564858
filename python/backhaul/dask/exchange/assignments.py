"""Partition numbers of rows that the exchange computes in the place of Dask.

Dask adds a column of partition numbers to the input of a shuffle: by the hash of keys, or by the
divisions of a sort. The tasks of the exchange compute the numbers where they group the rows. The
kernels compute them where they know the types of a partition; otherwise Dask does, as before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from backhaul._native import Partitioning
from backhaul.dask.compat.names import AssignPartitioningIndex, set_partitions_pre
from backhaul.dask.exchange.columns import Field, RawColumn, raw_column
from backhaul.dask.exchange.hashing import is_native

__all__ = ["Assignment", "ByDivisions", "ByHash"]


@dataclass(frozen=True)
class ByHash:
    """Partitions by the hash of keys.

    Parameters
    ----------
    keys : tuple of str or None
        The columns to hash; None for the index.
    arguments : tuple
        Arguments of `AssignPartitioningIndex.operation` after the frame.
    """

    keys: tuple[str, ...] | None
    arguments: tuple[Any, ...]

    def is_native(self) -> bool:
        """Tell whether the kernels compute the numbers that Dask would."""
        return is_native()

    def assigned(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Add the column of partition numbers as Dask does."""
        found: pd.DataFrame = AssignPartitioningIndex.operation(frame, *self.arguments)
        return found


@dataclass(frozen=True)
class ByDivisions:
    """Partitions by the divisions of a sort.

    Parameters
    ----------
    number_column : str
        The column of partition numbers.
    key : str
        The column that is sorted.
    arguments : tuple
        Arguments of `set_partitions_pre` after the key: the divisions, whether the sort ascends,
        and the place of missing values.
    raw : RawColumn
        The divisions in the type of the key.
    """

    number_column: str
    key: str
    arguments: tuple[Any, bool, str]
    raw: RawColumn

    #: No column is hashed.
    keys: tuple[str, ...] | None = ()

    def is_native(self) -> bool:
        """Tell that the kernels compute the numbers that Dask would."""
        return True

    def assigned(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Add the column of partition numbers as Dask does."""
        numbers = set_partitions_pre(frame[self.key], *self.arguments)
        return frame.assign(**{self.number_column: numbers})

    def partitioning(
        self, key: RawColumn, rows: int, partitions: int, wanted: Sequence[int] | None
    ) -> Partitioning:
        """Assign the rows of a partition, whose key column is `key`."""
        _, ascending, na_position = self.arguments
        order = bool(ascending), na_position == "last"
        return Partitioning.by_divisions(key, self.raw, rows, partitions, wanted, order)


#: How the rows of an input partition get their partition numbers
Assignment: TypeAlias = ByHash | ByDivisions


def raw_divisions(divisions: Any, field: Field) -> RawColumn | None:
    """Return divisions in the type of a key; None if Dask has to compare them.

    Parameters
    ----------
    divisions : pandas.Series
        The least value of each output partition, then the largest one.
    field : Field
        The key column.
    """
    if len(divisions) < 2 or field.has_own_missing or divisions.isna().any():
        return None
    if divisions.dtype != field.dtype:
        types = (divisions.dtype, field.dtype)
        if not all(isinstance(each, np.dtype) and each.kind in "iuf" for each in types):
            return None
        if divisions.dtype.kind != field.dtype.kind:
            # NumPy compares integers with floats as floats.
            return None
        cast = divisions.astype(field.dtype)
        if not (cast == divisions).all():
            return None
        divisions = cast
    if not divisions.is_monotonic_increasing:
        return None
    return raw_column(divisions, field.kind)
