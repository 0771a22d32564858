"""Data of an exchange: blocks of input partitions, and bundles of all blocks of a frame.

A block has all columns and offsets of an input partition in one array, so that pickling it costs
one buffer, which is lent to other workers of the host. A `TableBlock` takes the place of a block
where a partition is not of the types that its frame announces.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dask.sizeof import sizeof

__all__ = ["Block", "Bundle", "TableBlock"]

#: Bytes of the objects around a block
_OBJECT_BYTES = 400


class Block:
    """Rows of one input partition, grouped by output partition.

    Parameters
    ----------
    buffer : ndarray of uint8
        The block, in the format of ``crates/exchange/src/block.rs``.
    """

    __slots__ = ("buffer",)

    def __init__(self, buffer: Any) -> None:
        self.buffer = buffer

    def __reduce__(self) -> tuple[Any, ...]:
        return Block, (self.buffer,)

    def __sizeof__(self) -> int:
        return _OBJECT_BYTES + int(self.buffer.nbytes)

    def is_made_here(self) -> bool:
        """Tell whether this process has allocated the memory, rather than received it."""
        return bool(self.buffer.flags.owndata)


class TableBlock:
    """Rows of one input partition as an Arrow table, grouped by output partition.

    Parameters
    ----------
    table : pyarrow.Table
        The rows, with the index of pandas.
    offsets : ndarray of int64
        First row of each slot, then the number of rows.
    """

    __slots__ = ("offsets", "table")

    def __init__(self, table: Any, offsets: Any) -> None:
        self.table = table
        self.offsets = offsets

    def __reduce__(self) -> tuple[Any, ...]:
        return TableBlock, (self.table, self.offsets)

    def __sizeof__(self) -> int:
        return _OBJECT_BYTES + int(self.table.nbytes)

    def is_made_here(self) -> bool:
        """Tell that the table counts in each process, as parts of it may be copies."""
        return True

    def piece(self, slot: int) -> Any:
        """Return the rows of one slot."""
        start = int(self.offsets[slot])
        return self.table.slice(start, int(self.offsets[slot + 1]) - start)


class Bundle:
    """All blocks of one frame.

    Parameters
    ----------
    blocks : list of Block, TableBlock or None
        One for each input partition; None for those without rows.
    """

    __slots__ = ("blocks",)

    def __init__(self, blocks: list[Block | TableBlock | None]) -> None:
        self.blocks = [block for block in blocks if block is not None]

    def __iter__(self) -> Iterator[Block | TableBlock]:
        return iter(self.blocks)

    def __reduce__(self) -> tuple[Any, ...]:
        return Bundle, (self.blocks,)

    def __sizeof__(self) -> int:
        # Memory that others have lent counts where it was made.
        own: int = sum(sizeof(block) for block in self.blocks if block.is_made_here())
        return own + _OBJECT_BYTES * (1 + len(self.blocks))


def _bytes_of(found: Block | TableBlock | Bundle) -> int:
    return found.__sizeof__()


for _kind in (Block, TableBlock, Bundle):
    sizeof.register(_kind, _bytes_of)
