"""Space of a file that is taken and given back in extents. No I/O."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

__all__ = ["Extents"]

#: Extents begin and end at multiples of that: the blocks of file systems
_BLOCK_BYTES: Final = 4096
#: Free extents that are looked at for one that is large enough
_LOOKS_MAX: Final = 64
#: Free space at the end of a file that stays for the next extents
_TAIL_BYTES_MAX: Final = 64 << 20


class Extents:
    """Extents of a file: first fit, neighbours that are free are one.

    Attributes
    ----------
    used_bytes : int
        Bytes of the extents in use, in whole blocks.
    """

    def __init__(self) -> None:
        self.used_bytes = 0
        # Of the free extents, by offset; none is the last before `_end`
        self._offsets: list[int] = []
        self._sizes: list[int] = []
        self._end = 0
        # The file may have so many bytes
        self._file_bytes = 0

    def take(self, nbytes: int) -> int:
        """Return the offset of a new extent for that many bytes."""
        size = _blocks(nbytes)
        self.used_bytes += size
        for index in range(min(len(self._sizes), _LOOKS_MAX)):
            left = self._sizes[index] - size
            if left < 0:
                continue
            offset = self._offsets[index]
            if left:
                self._offsets[index] += size
                self._sizes[index] = left
            else:
                del self._offsets[index], self._sizes[index]
            return offset
        offset = self._end
        self._end += size
        self._file_bytes = max(self._file_bytes, self._end)
        return offset

    def give(self, offset: int, nbytes: int) -> int | None:
        """Give an extent back.

        Returns
        -------
        int or None
            The size that the file should be cut to; None if it should stay.
        """
        size = _blocks(nbytes)
        self.used_bytes -= size
        index = bisect_left(self._offsets, offset)
        if index < len(self._offsets) and offset + size == self._offsets[index]:
            size += self._sizes[index]
            del self._offsets[index], self._sizes[index]
        if index and self._offsets[index - 1] + self._sizes[index - 1] == offset:
            index -= 1
            offset -= self._sizes[index]
            size += self._sizes[index]
            del self._offsets[index], self._sizes[index]
        if offset + size < self._end:
            self._offsets.insert(index, offset)
            self._sizes.insert(index, size)
            return None
        self._end = offset
        tail_bytes = self._file_bytes - self._end
        if self._end and tail_bytes <= max(_TAIL_BYTES_MAX, self._end):
            return None
        self._file_bytes = self._end
        return self._end


def _blocks(nbytes: int) -> int:
    """Return the bytes of the blocks that have so many bytes, at least one block."""
    return max(-(-nbytes // _BLOCK_BYTES), 1) * _BLOCK_BYTES
