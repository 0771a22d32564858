"""Plans of an exchange: arguments that all tasks of one kind share."""

from __future__ import annotations

import contextlib
import functools
import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pandas as pd

from backhaul.dask.exchange.assignments import Assignment
from backhaul.dask.exchange.columns import Schema
from backhaul.dask.exchange.joins import JoinPlan

__all__ = ["FramePlan", "MergePlan", "SharedPlan", "failing"]


class SharedPlan:
    """Arguments that many tasks share: pickled once, and unpickled once in each process."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _load, (self._pickled,)

    @functools.cached_property
    def _pickled(self) -> bytes:
        # Before the property itself is among the attributes
        return pickle.dumps((type(self), dict(vars(self))), protocol=pickle.HIGHEST_PROTOCOL)


#: Plans that a process keeps
_PLANS_MAX = 64


@functools.lru_cache(maxsize=_PLANS_MAX)
def _load(state: bytes) -> SharedPlan:
    kind, values = pickle.loads(state)
    plan: SharedPlan = kind.__new__(kind)
    vars(plan).update(values)
    return plan


@dataclass(frozen=True, eq=False)
class FramePlan(SharedPlan):
    """How the rows of one frame are exchanged.

    Parameters
    ----------
    token : str
        Names the exchange in errors.
    meta : pandas.DataFrame
        Types of the input partitions.
    schema : Schema or None
        Index and columns of the output partitions; None if all blocks are Arrow tables.
    partitions : int
        Output partitions.
    wanted : tuple of int or None
        Output partitions that are needed, ascending; None for all. Their places are the *slots*.
    number_column : str or None
        The input column that has the output partition of each row, and is dropped.
    keys : tuple of str or None
        Where the input has no such column: the columns to hash; None for the index.
    keeps_index : bool
        Whether the output needs the index.
    memory_bytes : float
        Memory that the blocks may take in each worker; others are in files.
    assignment : Assignment or None
        How the rows get their partition numbers; None if the input has the column, or is merged.
    """

    token: str
    meta: pd.DataFrame
    schema: Schema | None
    partitions: int
    wanted: tuple[int, ...] | None
    number_column: str | None
    keys: tuple[str, ...] | None
    keeps_index: bool
    memory_bytes: float
    assignment: Assignment | None = None

    @property
    def slots(self) -> int:
        """Number of output partitions that are needed."""
        return self.partitions if self.wanted is None else len(self.wanted)

    def fits(self, frame: Any) -> bool:
        """Tell whether the kernels support an input partition without partition numbers."""
        return self.schema is not None and self.schema.fits(frame)

    def output_meta(self) -> pd.DataFrame:
        """Make an output partition without rows."""
        if self.number_column is None:
            return self.meta.copy()
        return self.meta.drop(columns=self.number_column)


@dataclass(frozen=True, eq=False)
class MergePlan(SharedPlan):
    """How two output partitions are merged.

    Parameters
    ----------
    left, right : FramePlan
        The two frames.
    options : dict
        Arguments of `dask.dataframe.multi.merge_chunk`.
    join : JoinPlan or None
        How the kernels merge them; None if pandas does.
    """

    left: FramePlan
    right: FramePlan
    options: dict[str, Any]
    join: JoinPlan | None


@contextlib.contextmanager
def failing(plan: FramePlan, phase: str) -> Iterator[None]:
    """Raise what upstream's P2P raises where an exchange fails."""
    try:
        yield
    except Exception as error:
        raise RuntimeError(f"P2P {plan.token} failed during {phase} phase") from error
