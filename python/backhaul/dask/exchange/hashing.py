"""Partition numbers of rows: by the hash of keys, equal to that of the installed pandas.

The hash of pandas is in Rust. `is_native` compares both for 64 rows of each type once, because
releases of pandas differ in how they hash NaN and negative zero. If they differ, pandas hashes and
Rust scatters.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from backhaul._native import Partitioning
from backhaul.dask.compat.names import is_numeric_cast_type, partitioning_index
from backhaul.dask.exchange.columns import raw_column

__all__ = ["is_native", "numbers_by_pandas"]

_TEST_ROWS = 64


def numbers_by_pandas(keys: pd.DataFrame, partitions: int) -> Any:
    """Return the output partition of each row, computed by Dask and pandas.

    Parameters
    ----------
    keys : pandas.DataFrame
        The key columns.
    partitions : int
        Output partitions.
    """
    casts = {name: np.float64 for name, dtype in keys.dtypes.items() if is_numeric_cast_type(dtype)}
    if casts:
        keys = keys.astype(casts, errors="ignore")
    return partitioning_index(keys, partitions)


@functools.cache
def is_native() -> bool:
    """Tell whether the kernels hash as the installed pandas does."""
    keys = _test_keys()
    choices: list[Sequence[str]] = [[name] for name in keys]
    return all(_agree(keys[list(names)]) for names in [*choices, list(keys)])


def _agree(keys: pd.DataFrame) -> bool:
    partitions = 9973
    raw = [raw_column(keys[name], _kind(keys[name])) for name in keys]
    expected = numbers_by_pandas(keys, partitions)
    for partition in np.unique(expected):
        wanted = Partitioning.by_keys(raw, len(keys), partitions, [int(partition)])
        column: Any = np.arange(len(keys))
        rows = ("int64", column, None, None, 0)
        block: Any = np.empty(wanted.block_bytes([rows]), np.uint8)
        wanted.write_block([rows], block)
        found = block[len(block) - 8 * wanted.rows :].view(np.int64)
        if not np.array_equal(found, column[expected == partition]):
            return False
    return True


def _kind(values: Any) -> str:
    if isinstance(values.dtype, pd.StringDtype):
        return "text"
    return "time" if values.dtype.kind in "mM" else str(values.dtype.name)


def _test_keys() -> pd.DataFrame:
    random = np.random.default_rng(0)
    integers = random.integers(-(2**62), 2**62, _TEST_ROWS)
    integers[:4] = [0, -1, 2**53 + 1, 2**62 + 1]
    floats = random.standard_normal(_TEST_ROWS)
    floats[:6] = [0.0, -0.0, np.nan, np.inf, -np.inf, 1e30]
    # The same NaN with its sign bit set
    floats[6] = -np.float64("nan")
    times = integers.view("M8[ns]").copy()
    times[5] = np.datetime64("NaT")
    text = ["\N{LATIN SMALL LETTER A WITH DIAERESIS}" * (row % 5) + "x" * row for row in range(64)]
    return pd.DataFrame(
        {
            "integers": integers,
            "unsigned": integers.view(np.uint64),
            "small": integers.astype(np.int8),
            "floats": floats,
            "narrow": floats.astype(np.float32),
            "flags": floats > 0,
            "times": times,
            "text": pd.array([*text[:62], None, ""], dtype=pd.StringDtype("pyarrow", np.nan)),
        }
    )
