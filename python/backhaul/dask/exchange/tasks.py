"""Functions of the tasks of an exchange.

A task has two arguments beside its data: a plan, which all tasks of its kind share and workers keep
once it is unpickled, and the number of an output partition.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any, cast

import numpy as np
import pandas as pd

from backhaul._native import assemble_pieces, piece_sizes
from backhaul.dask.compat.names import (
    convert_shards,
    input_partition_column,
    merge_chunk,
    to_pyarrow_table_dispatch,
)
from backhaul.dask.exchange.blocks import (
    AnyBlock,
    Block,
    Bundle,
    FileBlock,
    TableBlock,
    TableFileBlock,
)
from backhaul.dask.exchange.columns import Schema, filled_columns
from backhaul.dask.exchange.plans import FramePlan, MergePlan, failing
from backhaul.dask.exchange.transfers import blocks_of
from backhaul.dask.observe.exchange_counters import exchange_counters

__all__ = ["bundle", "transfer", "unpack", "unpack_merge"]


def transfer(frame: Any, plan: FramePlan) -> AnyBlock | None:
    """Group the rows of an input partition by output partition.

    The arguments and the error are those of `backhaul.dask.exchange.transfers.blocks_of`.

    Returns
    -------
    AnyBlock or None
        None if no row is needed.
    """
    (block,) = blocks_of(frame, plan)
    return block


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
    with failing(plan, "unpack"):
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
