"""The exchange of dataframes: partitions, joins and blocks."""

from collections.abc import Sequence
from typing import final

from typing_extensions import Buffer

_Column = tuple[str, Buffer, Buffer | None, Buffer | None, int]

@final
class Partitioning:
    """Assignment of the rows of one input partition to the slots of a block.

    A slot is a wanted output partition. Rows keep their order within a slot. A column is given as
    its kind (``"bool"``, ``"int8"`` to ``"float64"``, ``"time"`` or ``"text"``), its values, and
    for text its offsets of eight bytes, its validity bits or None, and the bit of its first row.
    """

    @staticmethod
    def by_keys(
        keys: Sequence[_Column], rows: int, partitions: int, wanted: Sequence[int] | None
    ) -> Partitioning:
        """Partition rows by the hash of their keys, as Dask does.

        Parameters
        ----------
        keys : sequence of tuple
            The key columns.
        rows : int
            Rows of the input partition.
        partitions : int
            Output partitions.
        wanted : sequence of int or None
            Output partitions of the slots, ascending; None for all.

        Raises
        ------
        ValueError
            If a key has another number of rows, or is inconsistent.
        """

    @staticmethod
    def by_numbers(
        numbers: Buffer, width: int, rows: int, partitions: int, wanted: Sequence[int] | None
    ) -> Partitioning:
        """Partition rows by partition numbers of `width` bytes; drop rows without a valid one.

        The other parameters and the errors are those of `by_keys`.
        """

    @staticmethod
    def by_divisions(
        key: _Column,
        divisions: _Column,
        rows: int,
        partitions: int,
        wanted: Sequence[int] | None,
        order: tuple[bool, bool],
    ) -> Partitioning:
        """Partition rows by sorted divisions of a key, as ``set_partitions_pre`` of Dask does.

        Parameters
        ----------
        key : tuple
            The key column.
        divisions : tuple
            The least value of each output partition, ascending, then the largest one.
        rows, partitions, wanted
            As for `by_keys`.
        order : tuple of bool
            Whether the first output partition has the least values, and whether the last one has
            the missing ones.

        Raises
        ------
        ValueError
            If the columns differ in type or have other numbers of values, or a division is missing.
        """

    def part(self, start: int, stop: int) -> Partitioning:
        """Assign the rows of some slots alone, in time in proportion to all rows.

        Parameters
        ----------
        start, stop : int
            The first slot, and the one after the last.

        Raises
        ------
        ValueError
            If there are no such slots.
        """

    @property
    def rows(self) -> int:
        """Rows of the block."""

    def block_bytes(self, columns: Sequence[_Column]) -> int:
        """Return the size of a block that has these columns."""

    def write_block(self, columns: Sequence[_Column], block: Buffer) -> None:
        """Write the columns into a block, grouped by slot, without the GIL.

        Raises
        ------
        ValueError
            If a column has another number of rows, or `block` another size than `block_bytes` says.
        """

def piece_sizes(blocks: Sequence[Buffer], slot: int) -> tuple[int, list[int]]:
    """Return the rows of one slot in all blocks, and the bytes of text of each column.

    Raises
    ------
    ValueError
        If a block is inconsistent, or the blocks differ in their columns.
    """

def assemble_pieces(
    blocks: Sequence[Buffer], slot: int, targets: Sequence[tuple[Buffer, ...]]
) -> list[int]:
    """Concatenate the pieces of one slot in the order of the blocks, without the GIL.

    Parameters
    ----------
    blocks : sequence of buffer
        The blocks.
    slot : int
        The slot.
    targets : sequence of tuple of buffer
        Memory for each column: values, or for text offsets, validity bits and text.

    Returns
    -------
    list of int
        Nulls of each text column; 0 for the others.

    Raises
    ------
    ValueError
        If a block is inconsistent, or a target has another size than `piece_sizes` says.
    """

@final
class Join:
    """Pairs of rows with equal keys of one slot of two frames, in the order of pandas.

    Null equals null, and NaN equals NaN.
    """

    @staticmethod
    def of_slot(
        left: Sequence[Buffer],
        right: Sequence[Buffer],
        slot: int,
        keys: tuple[Sequence[int], Sequence[int]],
        how: str,
        columns: Sequence[tuple[bool, int, int | None]],
    ) -> Join:
        """Join one slot on columns of each frame, without the GIL.

        Parameters
        ----------
        left, right : sequence of buffer
            The blocks of both frames.
        slot : int
            The slot.
        keys : tuple of sequence of int
            The columns with the keys, of the same types.
        how : str
            ``"inner"``, ``"left"``, ``"outer"``, or ``"semi"``: left rows with a partner, each with
            the first one.
        columns : sequence of tuple
            For each column of the result, whether it is of the right frame, its number there, and
            the column of the other frame that replaces missing rows, or None.

        Raises
        ------
        ValueError
            If a block is inconsistent, or if the types of the keys differ.
        """

    @property
    def rows(self) -> int:
        """Rows of the result."""

    @property
    def text_bytes(self) -> list[int]:
        """Bytes of text of each column of the result; 0 for those that are no text."""

    def has_missing(self, is_right: bool) -> bool:
        """Tell whether a row of the result has no row of a frame."""

    def gather(
        self,
        left: Sequence[Buffer],
        right: Sequence[Buffer],
        targets: Sequence[tuple[Buffer, ...]],
    ) -> list[int]:
        """Gather the columns of the result from the blocks, without the GIL.

        Where rows of a frame are missing and no other column replaces them, integers are converted
        to ``float64``. Missing values are NaN, NaT, null, or 2 for booleans.

        Parameters
        ----------
        left, right : sequence of buffer
            The blocks that were joined.
        targets : sequence of tuple of buffer
            Memory for each column, as for `assemble_pieces`.

        Returns
        -------
        list of int
            Nulls of each text column; 0 for the others.

        Raises
        ------
        ValueError
            If the blocks are others, or a target has another size than its column.
        """

def read_piece(descriptor: int, offset: int, size: int, slot: int) -> bytes:
    """Read one slot of a block in a file, without the GIL.

    Parameters
    ----------
    descriptor : int
        The file.
    offset : int
        First byte of the block.
    size : int
        Size of the block.
    slot : int
        The slot.

    Returns
    -------
    bytes
        A block of the same columns and slots, whose other slots are empty.

    Raises
    ------
    OSError
        If the file cannot be read.
    ValueError
        If the block is inconsistent.
    """
