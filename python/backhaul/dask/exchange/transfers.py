"""Transfers: the rows of an input partition, grouped by output partition in blocks."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pandas as pd

from backhaul._native import Partitioning
from backhaul.dask.compat.names import to_pyarrow_table_dispatch
from backhaul.dask.exchange.assignments import ByDivisions
from backhaul.dask.exchange.block_files import block_store
from backhaul.dask.exchange.blocks import AnyBlock, Block, TableBlock
from backhaul.dask.exchange.columns import RawColumn, Schema, raw_column, raw_columns
from backhaul.dask.exchange.hashing import is_native, numbers_by_pandas
from backhaul.dask.exchange.plans import FramePlan, failing
from backhaul.dask.observe.exchange_counters import exchange_counters

__all__ = ["SlotRange", "blocks_of", "stored"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class SlotRange:
    """The slots of one block of an input partition.

    Parameters
    ----------
    start, stop : int
        The first slot, and the one after the last.
    stays_here : bool
        Whether the block stays on this host, in memory or in a file. One for another host stays a
        plain result, which Dask may spill, until that host has it.
    """

    start: int
    stop: int
    stays_here: bool = True


def blocks_of(
    frame: Any, plan: FramePlan, ranges: Sequence[SlotRange] | None = None
) -> list[AnyBlock | None]:
    """Group the rows of an input partition by output partition.

    Parameters
    ----------
    frame : pandas.DataFrame
        The input partition.
    plan : FramePlan
        How.
    ranges : sequence of SlotRange, optional
        The slots of each block; all of them in one block by default.

    Returns
    -------
    list of AnyBlock or None
        A block for each range; None for one without rows.

    Raises
    ------
    RuntimeError
        If the partition cannot be exchanged, as upstream's P2P raises it.
    """
    if ranges is None:
        ranges = (SlotRange(0, plan.slots),)
    if plan.number_column is None or plan.assignment is not None:
        if plan.fits(frame) and (plan.assignment is None or plan.assignment.is_native()):
            with failing(plan, "transfer"):
                return _by_kernels(frame, plan, None, ranges)
        if plan.assignment is not None:
            frame = plan.assignment.assigned(frame)
    with failing(plan, "transfer"):
        if set(frame.columns) != set(plan.meta.columns):
            raise ValueError(
                f"Expected self.meta.columns={plan.meta.columns!r} to match "
                f"data.columns={frame.columns!r}."
            )
        numbers = None
        if plan.number_column is not None and len(frame):
            numbers = _numbers_of(frame[plan.number_column], plan.partitions)
            frame = frame.drop(columns=plan.number_column)
            if plan.fits(frame):
                return _by_kernels(frame, plan, numbers, ranges)
        return _by_arrow(frame, plan, numbers, ranges)


def _numbers_of(column: pd.Series, partitions: int) -> Any:
    """Return the partition numbers of rows as signed integers; -1 where there is none."""
    if column.dtype.kind == "i":
        return np.ascontiguousarray(column.to_numpy())
    if column.dtype.kind == "u":
        return np.ascontiguousarray(column.to_numpy().astype(np.int64))
    # Upstream looks each value up by equality.
    known = pd.Series(np.arange(partitions), index=np.arange(partitions))
    return column.map(known).fillna(-1).to_numpy().astype(np.int64)


def _by_kernels(
    frame: pd.DataFrame, plan: FramePlan, numbers: Any, ranges: Sequence[SlotRange]
) -> list[AnyBlock | None]:
    if not len(frame):
        return [None] * len(ranges)
    schema = cast(Schema, plan.schema)
    columns = {
        field.name: raw_columns(column, field.kind)
        for field, (_, column) in zip(schema.fields, frame.items(), strict=True)
    }
    index: list[RawColumn] = []
    if plan.keeps_index or plan.keys is None:
        index = [raw_column(frame.index, schema.index.kind)]
    assigned = _assigned(frame, plan, numbers, columns, index)
    kept = [*(index if plan.keeps_index else ()), *itertools.chain(*columns.values())]
    found: list[AnyBlock | None] = []
    for each in ranges:
        is_all = (each.start, each.stop) == (0, plan.slots)
        partitioning = assigned if is_all else assigned.part(each.start, each.stop)
        if not partitioning.rows:
            found.append(None)
            continue
        buffer: Any = np.empty(partitioning.block_bytes(kept), np.uint8)
        partitioning.write_block(kept, buffer)
        block = Block(buffer)
        found.append(stored(block, plan) if each.stays_here else block)
    return found


def _assigned(
    frame: pd.DataFrame,
    plan: FramePlan,
    numbers: Any,
    columns: dict[str, list[RawColumn]],
    index: list[RawColumn],
) -> Partitioning:
    """Assign the rows to the slots."""
    rows, partitions, assignment = len(frame), plan.partitions, plan.assignment
    if numbers is None and isinstance(assignment, ByDivisions):
        key = columns[assignment.key][0]
        return assignment.partitioning(key, rows, partitions, plan.wanted)
    fields = cast(Schema, plan.schema).fields
    keyed = [field for field in fields if plan.keys is not None and field.name in plan.keys]
    if numbers is None and is_native() and not any(field.has_own_missing for field in keyed):
        keys = index if plan.keys is None else [columns[name][0] for name in plan.keys]
        return Partitioning.by_keys(keys, rows, partitions, plan.wanted)
    if numbers is None:
        numbers = _numbers_by_pandas(frame, plan)
    return Partitioning.by_numbers(numbers, numbers.dtype.itemsize, rows, partitions, plan.wanted)


def stored(block: Block | TableBlock, plan: FramePlan) -> AnyBlock:
    """Keep a block in memory, or write it to a file where there is no memory for it."""
    nbytes, found = block.data_bytes, cast(AnyBlock, block)
    try:
        file = block_store.file_for(plan.token, nbytes, plan.memory_bytes)
        if file is not None:
            found = block.write(file)
    except OSError as error:
        file = None
        logger.warning("A block of an exchange stays in memory, as a file fails: %s", error)
    exchange_counters.note_block(plan.token, nbytes, in_file=file is not None)
    return found


def _by_arrow(
    frame: pd.DataFrame, plan: FramePlan, numbers: Any, ranges: Sequence[SlotRange]
) -> list[AnyBlock | None]:
    if not len(frame):
        return [None] * len(ranges)
    if numbers is None:
        numbers = _numbers_by_pandas(frame, plan)
    table = to_pyarrow_table_dispatch(frame, preserve_index=True)
    slots = np.full(len(numbers), plan.slots)
    valid = (numbers >= 0) & (numbers < plan.partitions)
    of_partition = np.full(plan.partitions, plan.slots)
    wanted = range(plan.partitions) if plan.wanted is None else plan.wanted
    of_partition[list(wanted)] = np.arange(plan.slots)
    slots[valid] = of_partition[numbers[valid]]
    offsets = np.concatenate([[0], np.cumsum(np.bincount(slots, minlength=plan.slots + 1))])
    offsets = offsets[: plan.slots + 1]
    order = np.argsort(slots, kind="stable")[: offsets[-1]]
    found: list[AnyBlock | None] = []
    for each in ranges:
        ends = offsets[each.start : each.stop + 1]
        rows = order[ends[0] : ends[-1]]
        block = TableBlock(table.take(rows), ends - ends[0]) if len(rows) else None
        found.append(block if block is None or not each.stays_here else stored(block, plan))
    return found


def _numbers_by_pandas(frame: pd.DataFrame, plan: FramePlan) -> Any:
    if plan.keys is None:
        keys = frame[[]].copy()
        keys["_index"] = frame.index
    else:
        keys = frame[list(plan.keys)]
    return np.ascontiguousarray(numbers_by_pandas(keys, plan.partitions))
