"""Data of an exchange: blocks of input partitions, and bundles of all blocks of a frame.

A block has all columns and offsets of an input partition in one array, so that pickling it costs
one buffer, which is lent to other workers of the host. A `TableBlock` takes the place of a block
where the kernels do not support the types of a partition. A `FileBlock` and a `TableFileBlock` are
those of a worker that has no memory for them. `HostBlocks` are the blocks of an input partition for
several hosts, and a `SentBlock` is one of them on its way.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
from dask.sizeof import sizeof

from backhaul.dask.compat.names import dask_deserialize, dask_serialize
from backhaul.dask.exchange.block_files import BlockFile, open_file

__all__ = [
    "AnyBlock",
    "Block",
    "Bundle",
    "FileBlock",
    "HostBlocks",
    "SentBlock",
    "TableBlock",
    "TableFileBlock",
]

#: Bytes of the objects around a block
_OBJECT_BYTES = 400


class Block:
    """Rows of one input partition, grouped by output partition.

    Parameters
    ----------
    buffer : ndarray of uint8
        The block, in the format of ``crates/exchange/src/block.rs``.
    is_copy : bool
        Whether the memory belongs to this process, though it was received: from another host.
    """

    __slots__ = ("_is_copy", "buffer")

    def __init__(self, buffer: Any, *, is_copy: bool = False) -> None:
        self.buffer = buffer
        self._is_copy = is_copy

    def __reduce__(self) -> tuple[Any, ...]:
        return Block, (self.buffer,)

    def __sizeof__(self) -> int:
        return _OBJECT_BYTES + int(self.buffer.nbytes)

    def piece(self, slot: int) -> Any:
        """Return a block that has the rows of one slot: the whole one."""
        return self.buffer

    @property
    def data_bytes(self) -> int:
        """Size of the rows."""
        return int(self.buffer.nbytes)

    def write(self, file: BlockFile) -> FileBlock:
        """Write the block to a file.

        Raises
        ------
        OSError
            If the disk is full.
        """
        return FileBlock(file, file.append(self.buffer.data), self.buffer.nbytes)

    def is_made_here(self) -> bool:
        """Tell whether this process has allocated the memory, rather than borrowed it."""
        return self._is_copy or bool(self.buffer.flags.owndata)


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

    def in_memory(self) -> Block:
        """Read the whole block."""
        data = bytearray(self._file.read(self._offset, self._nbytes))
        return Block(np.frombuffer(data, np.uint8))

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

    @property
    def data_bytes(self) -> int:
        """Size of the rows."""
        return int(self.table.nbytes)

    def write(self, file: BlockFile) -> TableFileBlock:
        """Write the block to a file; the error is that of `Block.write`."""
        return TableFileBlock.write(self, file)

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

    def in_memory(self) -> TableBlock:
        """Read all slots."""
        pieces = [self.piece(slot) for slot in range(len(self._places) - 1)]
        lengths = [0 if piece is None else len(piece) for piece in pieces]
        table = pa.concat_tables(piece for piece in pieces if piece is not None)
        return TableBlock(table, np.cumsum([0, *lengths]))

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


class SentBlock:
    """A block for another host, until that host has received it.

    Parameters
    ----------
    block : Block or TableBlock
        The block, in memory.
    """

    __slots__ = ("_block",)

    def __init__(self, block: Block | TableBlock) -> None:
        self._block = block

    def arrived(self) -> Block | TableBlock:
        """Return the block, on the other host."""
        block = self._block
        return Block(block.buffer, is_copy=True) if isinstance(block, Block) else block

    def __reduce__(self) -> tuple[Any, ...]:
        return SentBlock, (self._block,)

    def __sizeof__(self) -> int:
        return _OBJECT_BYTES + self._block.__sizeof__()


class HostBlocks:
    """The blocks of one input partition, one for each host.

    Parameters
    ----------
    blocks : list of AnyBlock, SentBlock or None
        None for a host that gets no row.
    """

    __slots__ = ("blocks",)

    #: Blocks in files may be among them.
    stays_in_memory = True

    def __init__(self, blocks: list[AnyBlock | SentBlock | None]) -> None:
        self.blocks = blocks

    def in_memory(self) -> HostBlocks:
        """Read the blocks that are in files."""
        return HostBlocks(list(map(_in_memory, self.blocks)))

    def __reduce__(self) -> tuple[Any, ...]:
        return HostBlocks, (self.blocks,)

    def __sizeof__(self) -> int:
        return _OBJECT_BYTES + sum(int(sizeof(block)) for block in self.blocks)


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

    def in_memory(self) -> Bundle:
        """Read the blocks that are in files."""
        return Bundle(list(map(_in_memory, self.blocks)))

    def __reduce__(self) -> tuple[Any, ...]:
        return Bundle, (self.blocks,)

    def __sizeof__(self) -> int:
        # Memory that others have lent counts where it was made.
        own: int = sum(sizeof(block) for block in self.blocks if block.is_made_here())
        return own + _OBJECT_BYTES * (1 + len(self.blocks))


def _bytes_of(found: AnyBlock | SentBlock | HostBlocks | Bundle) -> int:
    return found.__sizeof__()


for _kind in (Block, FileBlock, TableBlock, TableFileBlock, SentBlock, HostBlocks, Bundle):
    sizeof.register(_kind, _bytes_of)


#: Lanes whose ends share files
_LANES_OF_A_HOST: Final = frozenset({"inproc", "shm"})


def _serialize_for_another_host(
    found: FileBlock | TableFileBlock | HostBlocks | Bundle, context: dict[str, Any] | None = None
) -> tuple[dict[str, Any], list[Any]]:
    """Serialize blocks in files by their content, because another host cannot open the files.

    Raises
    ------
    NotImplementedError
        If the receiver is on this host, or not known. Dask then pickles.
    """
    lane = ((context or {}).get("recipient") or {}).get("backhaul", {}).get("lane")
    if lane is None or lane in _LANES_OF_A_HOST:
        raise NotImplementedError("the receiver opens the files")
    buffers: list[pickle.PickleBuffer] = []
    pickled = pickle.dumps(found.in_memory(), protocol=5, buffer_callback=buffers.append)
    return {}, [pickled, *(buffer.raw() for buffer in buffers)]


def _deserialize_from_another_host(header: dict[str, Any], frames: list[Any]) -> Any:
    return pickle.loads(frames[0], buffers=frames[1:])


for _kind in (FileBlock, TableFileBlock, HostBlocks, Bundle):
    dask_serialize.register(_kind)(_serialize_for_another_host)
    dask_deserialize.register(_kind)(_deserialize_from_another_host)


def _in_memory(block: Any) -> Any:
    return block.in_memory() if isinstance(block, FileBlock | TableFileBlock) else block
