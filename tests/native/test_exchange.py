"""Kernels of the exchange as Python calls them: a round trip, and arguments that are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from backhaul import InvalidBuffer
from backhaul._native import Partitioning, assemble_pieces, piece_sizes

VALUES: Any = np.arange(10, dtype=np.int64)
NUMBERS: Any = VALUES.astype(np.int8) % 3


def column(values: Any) -> tuple[str, Any, None, None, int]:
    return ("int64", values, None, None, 0)


def block() -> Any:
    partitioning = Partitioning.by_numbers(NUMBERS, 1, 10, 3, None)
    made: Any = np.empty(partitioning.block_bytes([column(VALUES)]), np.uint8)
    partitioning.write_block([column(VALUES)], made)
    return made


def test_pieces_of_all_blocks_are_concatenated_in_their_order() -> None:
    blocks = [block(), block()]
    for slot in range(3):
        rows, sizes = piece_sizes(blocks, slot)
        target: Any = np.empty(rows, np.int64)
        assert sizes == [0]
        assert assemble_pieces(blocks, slot, [(target,)]) == [0]
        assert target.tolist() == VALUES[slot == NUMBERS].tolist() * 2


def test_a_target_that_is_read_only_or_shared_is_refused() -> None:
    made = block()
    target: Any = np.empty(4, np.int64)
    target.flags.writeable = False
    with pytest.raises(InvalidBuffer, match="read-only"):
        assemble_pieces([made], 0, [(target,)])
    with pytest.raises(InvalidBuffer, match="shares"):
        assemble_pieces([made], 0, [(made[:32],)])
    partitioning = Partitioning.by_numbers(NUMBERS, 1, 10, 3, None)
    with pytest.raises(InvalidBuffer, match="shares"):
        partitioning.write_block([column(VALUES)], VALUES)


def test_sizes_that_do_not_match_are_refused() -> None:
    too_short: list[Any] = [(np.empty(3, np.int64),)]
    with pytest.raises(ValueError, match="where 32 are expected"):
        assemble_pieces([block()], 0, too_short)
    with pytest.raises(ValueError, match="where 80 are expected"):
        Partitioning.by_numbers(NUMBERS, 1, 10, 3, None).block_bytes([column(VALUES[:9])])
    with pytest.raises(ValueError, match="where 88 are expected"):
        Partitioning.by_keys([column(VALUES)], 11, 3, None)
    with pytest.raises(ValueError, match="exceeds the limit"):
        Partitioning.by_numbers(NUMBERS, 1, 10, 3, [3])
    with pytest.raises(ValueError, match="exceeds the limit"):
        Partitioning.by_numbers(NUMBERS, 1, 10, 3, None).part(2, 4)


def test_blocks_that_are_truncated_or_of_another_version_are_refused() -> None:
    made = block()
    with pytest.raises(ValueError, match="invalid block"):
        piece_sizes([made[:-8]], 0)
    with pytest.raises(ValueError, match="invalid block"):
        piece_sizes([made], 3)
    made[0] += 1
    with pytest.raises(ValueError, match="version"):
        piece_sizes([made], 0)


def test_text_without_offsets_and_unknown_kinds_are_refused() -> None:
    for kind in ("text", "float16", ""):
        with pytest.raises(ValueError, match="invalid column"):
            Partitioning.by_keys([(kind, VALUES, None, None, 0)], 10, 3, None)
