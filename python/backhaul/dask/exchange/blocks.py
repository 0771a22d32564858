"""Data of an exchange: blocks of input partitions, and bundles of all blocks of a frame.

A block has all columns and offsets of an input partition in one array, so that pickling it costs
one buffer, which is lent to other workers of the host. A `TableBlock` takes the place of a block
where the kernels do not support the types of a partition. A `FileBlock` and a `TableFileBlock` are
those of a worker that has no memory for them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from dask.sizeof import sizeof

from backhaul.dask.exchange.block_files import BlockFile, open_file

__all__ = ["AnyBlock", "Block", "Bundle", "FileBlock", "TableBlock", "TableFileBlock"]

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

    def piece(self, slot: int) -> Any:
        """Return a block that has the rows of one slot: the whole one."""
        return self.buffer

    def is_made_here(self) -> bool:
        """Tell whether this process has allocated the memory, rather than received it."""
        return bool(self.buffer.flags.owndata)


class FileBlock:
    """A block in a file.

    Parameters
    ----------
    file : BlockFile
        The file.
    offset : int
        First byte of the block.
    nbytes : int
        Size of the block.
    """

    __slots__ = ("_file", "_nbytes", "_offset")

    #: The file is closed with the last block, so that a pickled one must not be the last.
    stays_in_memory = True

    def __init__(self, file: BlockFile, offset: int, nbytes: int) -> None:
        self._file = file
        self._offset = offset
        self._nbytes = nbytes

    def piece(self, slot: int) -> Any:
        """Read the rows of one slot, as a block whose other slots are empty."""
        return self._file.piece(self._offset, self._nbytes, slot)

    def __reduce__(self) -> tuple[Any, ...]:
        file = self._file
        place = self._offset, self._nbytes
        return _opened, (os.getpid(), file.descriptor, file.name, *place)

    def __sizeof__(self) -> int:
        return _OBJECT_BYTES

    def is_made_here(self) -> bool:
        """Tell that the objects around the block count in each process."""
        return True


def _opened(pid: int, descriptor: int, name: bytes, offset: int, nbytes: int) -> FileBlock:
    return FileBlock(open_file(pid, descriptor, name), offset, nbytes)


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


class TableFileBlock:
    """Arrow tables in a file, one stream for each slot.

    Parameters
    ----------
    file : BlockFile
        The file.
    places : ndarray of int64
        First byte of each slot, then the end.
    """

    __slots__ = ("_file", "_places")

    #: As for `FileBlock`
    stays_in_memory = True

    def __init__(self, file: BlockFile, places: Any) -> None:
        self._file = file
        self._places = places

    @classmethod
    def write(cls, block: TableBlock, file: BlockFile) -> TableFileBlock:
        """Write a block to a file.

        Raises
        ------
        OSError
            If the disk is full.
        """
        sink = pa.BufferOutputStream()
        places = [0]
        for slot in range(len(block.offsets) - 1):
            piece = block.piece(slot)
            if len(piece):
                with pa.ipc.new_stream(sink, piece.schema) as writer:
                    writer.write_table(piece)
            places.append(sink.tell())
        start = file.append(memoryview(sink.getvalue()))
        return cls(file, np.array(places) + start)

    def piece(self, slot: int) -> Any:
        """Read the rows of one slot; None if there is none."""
        start, end = self._places[slot : slot + 2].tolist()
        if start == end:
            return None
        with pa.ipc.open_stream(self._file.read(start, end - start)) as reader:
            return reader.read_all()

    def __reduce__(self) -> tuple[Any, ...]:
        file = self._file
        return _opened_tables, (os.getpid(), file.descriptor, file.name, self._places)

    def __sizeof__(self) -> int:
        return _OBJECT_BYTES + int(self._places.nbytes)

    def is_made_here(self) -> bool:
        """Tell that the objects around the block count in each process."""
        return True


def _opened_tables(pid: int, descriptor: int, name: bytes, places: Any) -> TableFileBlock:
    return TableFileBlock(open_file(pid, descriptor, name), places)


#: Rows of one input partition, wherever they are
AnyBlock: TypeAlias = Block | FileBlock | TableBlock | TableFileBlock


class Bundle:
    """All blocks of one frame.

    Parameters
    ----------
    blocks : list of AnyBlock or None
        One for each input partition; None for those without rows.
    """

    __slots__ = ("blocks",)

    #: A spilled bundle would write the blocks of all workers, and read them into private memory.
    stays_in_memory = True

    def __init__(self, blocks: list[AnyBlock | None]) -> None:
        self.blocks = [block for block in blocks if block is not None]

    def __iter__(self) -> Iterator[AnyBlock]:
        return iter(self.blocks)

    def __reduce__(self) -> tuple[Any, ...]:
        return Bundle, (self.blocks,)

    def __sizeof__(self) -> int:
        # Memory that others have lent counts where it was made.
        own: int = sum(sizeof(block) for block in self.blocks if block.is_made_here())
        return own + _OBJECT_BYTES * (1 + len(self.blocks))


def _bytes_of(found: AnyBlock | Bundle) -> int:
    return found.__sizeof__()


for _kind in (Block, FileBlock, TableBlock, TableFileBlock, Bundle):
    sizeof.register(_kind, _bytes_of)
