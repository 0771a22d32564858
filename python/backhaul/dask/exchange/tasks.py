"""Functions of the tasks of an exchange, and their plans.

A task has two arguments beside its data: a plan, which all tasks of its kind share and workers keep
once it is unpickled, and the number of an output partition.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pandas as pd

from backhaul._native import Partitioning, assemble_pieces, piece_sizes
from backhaul.dask.compat.names import (
    convert_shards,
    input_partition_column,
    merge_chunk,
    to_pyarrow_table_dispatch,
)
from backhaul.dask.exchange.assignments import Assignment, ByDivisions
from backhaul.dask.exchange.block_files import BlockFile, block_store
from backhaul.dask.exchange.blocks import (
    AnyBlock,
    Block,
    Bundle,
    FileBlock,
    TableBlock,
    TableFileBlock,
)
from backhaul.dask.exchange.columns import (
    RawColumn,
    Schema,
    filled_columns,
    raw_column,
    raw_columns,
)
from backhaul.dask.exchange.hashing import is_native, numbers_by_pandas
from backhaul.dask.exchange.joins import JoinPlan
from backhaul.dask.observe.exchange_counters import exchange_counters

__all__ = ["FramePlan", "MergePlan", "bundle", "transfer", "unpack", "unpack_merge"]

logger = logging.getLogger(__name__)


class _Plan:
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
def _load(state: bytes) -> _Plan:
    kind, values = pickle.loads(state)
    plan: _Plan = kind.__new__(kind)
    vars(plan).update(values)
    return plan


@dataclass(frozen=True, eq=False)
class FramePlan(_Plan):
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
class MergePlan(_Plan):
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


def transfer(frame: Any, plan: FramePlan) -> AnyBlock | None:
    """Group the rows of an input partition by output partition.

    Parameters
    ----------
    frame : pandas.DataFrame
        The input partition.
    plan : FramePlan
        How.

    Returns
    -------
    AnyBlock or None
        None if no row is needed.

    Raises
    ------
    RuntimeError
        If the partition cannot be exchanged, as upstream's P2P raises it.
    """
    if plan.number_column is None or plan.assignment is not None:
        if plan.fits(frame) and (plan.assignment is None or plan.assignment.is_native()):
            with _failing(plan, "transfer"):
                return _block_of(frame, plan, None) if len(frame) else None
        if plan.assignment is not None:
            frame = plan.assignment.assigned(frame)
    with _failing(plan, "transfer"):
        if set(frame.columns) != set(plan.meta.columns):
            raise ValueError(
                f"Expected self.meta.columns={plan.meta.columns!r} to match "
                f"data.columns={frame.columns!r}."
            )
        if not len(frame):
            return None
        numbers = None
        if plan.number_column is not None:
            numbers = _numbers_of(frame[plan.number_column], plan.partitions)
            frame = frame.drop(columns=plan.number_column)
            if plan.fits(frame):
                return _block_of(frame, plan, numbers)
        return _table_block_of(frame, plan, numbers)


def bundle(blocks: list[AnyBlock | None]) -> Bundle:
    """Collect the blocks of a frame."""
    return Bundle(blocks)


def unpack(blocks: Iterable[AnyBlock | None], slot: int, plan: FramePlan) -> pd.DataFrame:
    """Make an output partition.

    Parameters
    ----------
    blocks : Bundle or list
        The blocks of all input partitions, in their order.
    slot : int
        Which output partition.
    plan : FramePlan
        As for `transfer`.
    """
    with _failing(plan, "unpack"):
        output = _assembled(blocks, slot, plan)
    exchange_counters.note_output(plan.token, len(output))
    return output


def unpack_merge(
    left: Iterable[AnyBlock | None],
    right: Iterable[AnyBlock | None],
    slot: int,
    plan: MergePlan,
) -> pd.DataFrame:
    """Make an output partition of a merge; the arguments are those of `unpack` for both frames."""
    output = _merged(left, right, slot, plan)
    exchange_counters.note_output(plan.left.token, len(output))
    return output


def _merged(
    left: Iterable[AnyBlock | None],
    right: Iterable[AnyBlock | None],
    slot: int,
    plan: MergePlan,
) -> pd.DataFrame:
    if plan.join is not None:
        lefts, rights = _native_of(left), _native_of(right)
        if lefts and rights:
            return plan.join.merged(lefts, rights, slot)
    return merge_chunk(
        _assembled(left, slot, plan.left), _assembled(right, slot, plan.right), **plan.options
    )


@contextlib.contextmanager
def _failing(plan: FramePlan, phase: str) -> Iterator[None]:
    """Raise what upstream's P2P raises where an exchange fails."""
    try:
        yield
    except Exception as error:
        raise RuntimeError(f"P2P {plan.token} failed during {phase} phase") from error


def _numbers_of(column: pd.Series, partitions: int) -> Any:
    """Return the partition numbers of rows as signed integers; -1 where there is none."""
    if column.dtype.kind == "i":
        return np.ascontiguousarray(column.to_numpy())
    if column.dtype.kind == "u":
        return np.ascontiguousarray(column.to_numpy().astype(np.int64))
    # Upstream looks each value up by equality.
    known = pd.Series(np.arange(partitions), index=np.arange(partitions))
    return column.map(known).fillna(-1).to_numpy().astype(np.int64)


def _block_of(frame: pd.DataFrame, plan: FramePlan, numbers: Any) -> AnyBlock | None:
    schema, rows = cast(Schema, plan.schema), len(frame)
    columns = {
        field.name: raw_columns(column, field.kind)
        for field, (_, column) in zip(schema.fields, frame.items(), strict=True)
    }
    keyed = [field for field in schema.fields if plan.keys is not None and field.name in plan.keys]
    index: list[RawColumn] = []
    if plan.keeps_index or plan.keys is None:
        index = [raw_column(frame.index, schema.index.kind)]
    if numbers is None and isinstance(plan.assignment, ByDivisions):
        key = columns[plan.assignment.key][0]
        partitioning = plan.assignment.partitioning(key, rows, plan.partitions, plan.wanted)
    elif numbers is None and is_native() and not any(field.has_own_missing for field in keyed):
        keys = index if plan.keys is None else [columns[name][0] for name in plan.keys]
        partitioning = Partitioning.by_keys(keys, rows, plan.partitions, plan.wanted)
    else:
        if numbers is None:
            numbers = _numbers_by_pandas(frame, plan)
        width = numbers.dtype.itemsize
        partitioning = Partitioning.by_numbers(numbers, width, rows, plan.partitions, plan.wanted)
    if not partitioning.rows:
        return None
    kept = [*(index if plan.keeps_index else ()), *itertools.chain(*columns.values())]
    buffer: Any = np.empty(partitioning.block_bytes(kept), np.uint8)
    partitioning.write_block(kept, buffer)

    def write(file: BlockFile) -> FileBlock:
        return FileBlock(file, file.append(buffer.data), buffer.nbytes)

    return _stored(Block(buffer), buffer.nbytes, plan, write)


def _stored(
    block: AnyBlock, nbytes: int, plan: FramePlan, write: Callable[[BlockFile], AnyBlock]
) -> AnyBlock:
    """Keep a block in memory, or write it to a file where there is no memory for it."""
    try:
        file = block_store.file_for(plan.token, nbytes, plan.memory_bytes)
        if file is not None:
            block = write(file)
    except OSError as error:
        file = None
        logger.warning("A block of an exchange stays in memory, as a file fails: %s", error)
    exchange_counters.note_block(plan.token, nbytes, in_file=file is not None)
    return block


def _table_block_of(frame: pd.DataFrame, plan: FramePlan, numbers: Any) -> AnyBlock | None:
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
    if not len(order):
        return None
    block = TableBlock(table.take(order), offsets)
    write = functools.partial(TableFileBlock.write, block)
    return _stored(block, block.table.nbytes, plan, write)


def _numbers_by_pandas(frame: pd.DataFrame, plan: FramePlan) -> Any:
    if plan.keys is None:
        keys = frame[[]].copy()
        keys["_index"] = frame.index
    else:
        keys = frame[list(plan.keys)]
    return np.ascontiguousarray(numbers_by_pandas(keys, plan.partitions))


def _assembled(blocks: Iterable[AnyBlock | None], slot: int, plan: FramePlan) -> pd.DataFrame:
    """Concatenate the pieces of an output partition."""
    present = [block for block in blocks if block is not None]
    if not present:
        return plan.output_meta()
    native = _native_of(present)
    if not native:
        return _by_tables(present, slot, plan)
    found = _by_kernel(native, slot, plan, keeps_index=plan.keeps_index)
    return plan.output_meta() if found is None else found


def _native_of(blocks: Iterable[AnyBlock | None]) -> list[Block | FileBlock]:
    """List the blocks if the kernels read all of them, or return an empty list."""
    present = [block for block in blocks if block is not None]
    native = [block for block in present if isinstance(block, Block | FileBlock)]
    return native if len(native) == len(present) else []


def _by_kernel(
    blocks: Sequence[Block | FileBlock], slot: int, plan: FramePlan, *, keeps_index: bool
) -> pd.DataFrame | None:
    schema = cast(Schema, plan.schema)
    buffers = [block.piece(slot) for block in blocks]
    rows, sizes = piece_sizes(buffers, slot)
    if not rows:
        return None
    fields = [schema.index, *schema.fields] if keeps_index else list(schema.fields)
    fill = functools.partial(assemble_pieces, buffers, slot)
    values = filled_columns(fields, rows, sizes, fill)
    if not keeps_index:
        return schema.frame(values, pd.RangeIndex(rows))
    return schema.frame(values[1:], pd.Index(values[0], name=schema.index.name, copy=False))


def _by_tables(blocks: Sequence[AnyBlock], slot: int, plan: FramePlan) -> pd.DataFrame:
    """Concatenate pieces of different types as upstream's P2P does, by Arrow."""
    tables = []
    for number, block in enumerate(blocks):
        if isinstance(block, TableBlock | TableFileBlock):
            piece = block.piece(slot)
            if piece is None:
                continue
        else:
            frame = _by_kernel([block], slot, plan, keeps_index=plan.keeps_index)
            if frame is None:
                continue
            piece = to_pyarrow_table_dispatch(frame, preserve_index=True)
        if len(piece):
            ids = np.full(len(piece), number, np.uint32)
            tables.append(piece.append_column(input_partition_column, [ids]))
    if not tables:
        return plan.output_meta()
    return convert_shards(tables, plan.output_meta(), "", drop_column=False)
