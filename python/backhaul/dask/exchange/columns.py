"""Columns of pandas as memory that the kernels read and write, and the types that they support."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
import pyarrow as pa
from dask.dataframe.utils import meta_nonempty

from backhaul.dask.compat.names import from_pyarrow_table_dispatch, to_pyarrow_table_dispatch

__all__ = [
    "Field",
    "RawColumn",
    "Schema",
    "Unsupported",
    "field_of",
    "filled_columns",
    "raw_column",
    "raw_columns",
    "schema_of",
]

#: Kind, values, offsets, validity bits, bit of the first row, as `backhaul._native` takes a column
RawColumn: TypeAlias = tuple[str, Any, Any, Any, int]

#: Types of NumPy's that the kernels know by name
_NUMBERS = frozenset(
    [
        "bool",
        "int8",
        "int16",
        "int32",
        "int64",
        "uint8",
        "uint16",
        "uint32",
        "uint64",
        "float32",
        "float64",
    ]
)

#: Nullable types of pandas by the types of their values
_NULLABLE = {"boolean": "bool"} | {
    name.capitalize().replace("Uint", "UInt"): name for name in _NUMBERS - {"bool"}
}
#: Types of targets that the name of the kind does not tell
_TYPES = {"time": "int64", "missing_bool": "uint8"}
#: Round trips through Arrow whose results a process keeps
_TRIPS_MAX = 256
#: Booleans by their number in the kernels, where 2 is a missing one
_WITH_MISSING = np.array([False, True, np.nan], object)


class Unsupported(Exception):
    """A frame has something that the exchange does not support; the message says what."""


class _NoKernel(Exception):
    """A type is left to Arrow."""


@dataclass(frozen=True, slots=True)
class Field:
    """Name and type of one column, or of the index.

    Parameters
    ----------
    name : str or None
        The name; None for an index without one.
    dtype : dtype
        Type of the values in pandas.
    kind : str
        Type of the values for the kernels, or the nullable type of pandas.
    """

    name: Any
    dtype: Any
    kind: str

    @property
    def parts(self) -> tuple[Field, ...]:
        """The columns of the kernels; a nullable type has values and missing rows."""
        if self.kind not in _NULLABLE:
            return (self,)
        values, is_missing = np.dtype(_NULLABLE[self.kind]), np.dtype("bool")
        return Field(self.name, values, values.name), Field(self.name, is_missing, "bool")

    @property
    def has_own_missing(self) -> bool:
        """True if the kernels know neither its hash nor a value for a missing row."""
        return self.kind in _NULLABLE or isinstance(self.dtype, pd.CategoricalDtype)

    def of_parts(self, parts: Sequence[Any]) -> Any:
        """Make an array of pandas from the values of `parts`, without a copy."""
        if self.kind in _NULLABLE:
            return self.dtype.construct_array_type()(*parts)
        return parts[0]

    def targets(self, rows: int, text_bytes: int) -> tuple[Any, ...]:
        """Allocate memory for an output column.

        Parameters
        ----------
        rows : int
            Rows of the column.
        text_bytes : int
            Bytes of its text, if it is text.
        """
        if self.kind == "text":
            return (
                np.empty(rows + 1, np.int64),
                np.empty((rows + 7) // 8, np.uint8),
                np.empty(text_bytes, np.uint8),
            )
        return (np.empty(rows, _TYPES.get(self.kind, self.kind)),)

    def values(self, targets: tuple[Any, ...], rows: int, nulls: int) -> Any:
        """Make an array of pandas from filled `targets`, without a copy."""
        if self.kind == "text":
            offsets, validity, text = map(pa.py_buffer, targets)
            buffers = [validity if nulls else None, offsets, text]
            array = pa.Array.from_buffers(pa.large_string(), rows, buffers, null_count=nulls)
            return self.dtype.__from_arrow__(pa.chunked_array([array]))
        (values,) = targets
        if self.kind == "missing_bool":
            return _WITH_MISSING[values]
        if isinstance(self.dtype, pd.CategoricalDtype):
            return pd.Categorical.from_codes(values, dtype=self.dtype)
        if self.kind != "time":
            return values
        if isinstance(self.dtype, pd.DatetimeTZDtype):
            unaware = pd.DatetimeIndex(values.view(f"M8[{self.dtype.unit}]"))
            return unaware.tz_localize("UTC").tz_convert(self.dtype.tz).array
        return values.view(self.dtype)


@dataclass(frozen=True, slots=True)
class Schema:
    """Index and columns of all partitions of a frame, as after a round trip through Arrow.

    Parameters
    ----------
    index : Field
        The index.
    fields : tuple of Field
        The columns.
    columns : pandas.Index
        The names of the columns.
    """

    index: Field
    fields: tuple[Field, ...]
    columns: Any

    def fits(self, frame: pd.DataFrame) -> bool:
        """Tell whether a partition has these columns and this index, of these types."""
        return (
            type(frame) is pd.DataFrame
            and not frame.attrs
            and not isinstance(frame.index, pd.MultiIndex)
            and frame.index.name == self.index.name
            and frame.index.dtype == self.index.dtype
            and frame.columns.names == self.columns.names
            and frame.columns.dtype == self.columns.dtype
            and frame.columns.equals(self.columns)
            and all(
                _is_same(found, field.dtype)
                for found, field in zip(frame.dtypes, self.fields, strict=True)
            )
        )

    def frame(self, values: list[Any], index: Any) -> pd.DataFrame:
        """Make a frame of the arrays of its columns, without a copy."""
        # An index of numbers is made faster than one of text.
        frame = pd.DataFrame(dict(enumerate(values)), index=index, copy=False)
        frame.columns = self.columns
        return frame


def schema_of(meta: Any) -> Schema | None:
    """Describe the partitions of a frame as the kernels return them.

    Parameters
    ----------
    meta : pandas.DataFrame
        Dask's empty frame that has the types of the partitions.

    Returns
    -------
    Schema or None
        None if the kernels do not support a type, or if a round trip through Arrow, which
        upstream's P2P does, changes one. Such a frame is exchanged as Arrow tables.

    Raises
    ------
    Unsupported
        If the frame has names, attributes or an index that the exchange leaves to P2P.
    """
    if type(meta) is not pd.DataFrame:
        raise Unsupported(f"the frame is a {type(meta).__name__}")
    if meta.attrs:
        raise Unsupported("the frame has attributes")
    columns = meta.columns
    if isinstance(columns, pd.MultiIndex) or isinstance(meta.index, pd.MultiIndex):
        raise Unsupported("the frame has a MultiIndex")
    if not columns.is_unique or not all(isinstance(name, str) for name in columns):
        raise Unsupported("names of columns are repeated or no text")
    if not isinstance(meta.index.name, str | None):
        raise Unsupported("the name of the index is no text")
    try:
        fields = tuple(Field(name, dtype, _kind(dtype)) for name, dtype in meta.dtypes.items())
        index = Field(meta.index.name, meta.index.dtype, _kind(meta.index.dtype))
        if index.has_own_missing:
            return None
    except _NoKernel:
        return None
    schema = Schema(index, fields, columns)
    return schema if _is_kept_by_arrow(schema, meta) else None


def _is_same(found: Any, dtype: Any) -> bool:
    """Tell whether two types are equal; unordered categories are, to pandas, in any order."""
    if not isinstance(dtype, pd.CategoricalDtype):
        return bool(found == dtype)
    return (
        isinstance(found, pd.CategoricalDtype)
        and found.ordered == dtype.ordered
        and found.categories.dtype == dtype.categories.dtype
        and found.categories.equals(dtype.categories)
    )


#: Whether Arrow keeps the types of a frame, by these types
_kept_by_arrow: dict[tuple[Any, ...], bool] = {}


def field_of(name: str, dtype: Any) -> Field | None:
    """Describe a column; None if the kernels do not support its type."""
    try:
        return Field(name, dtype, _kind(dtype))
    except _NoKernel:
        return None


def _is_kept_by_arrow(schema: Schema, meta: pd.DataFrame) -> bool:
    """Tell whether a frame has the same types after Arrow, which takes milliseconds to find."""
    names = schema.columns
    # The option itself warns that it is deprecated.
    infers_text = pd.Index([""]).dtype
    types = (schema.index, schema.fields, names.name, names.dtype, type(meta.index), infers_text)
    found = _kept_by_arrow.get(types)
    if found is None:
        if len(_kept_by_arrow) >= _TRIPS_MAX:
            _kept_by_arrow.clear()
        found = _kept_by_arrow[types] = schema.fits(_after_arrow(meta))
    return found


def _after_arrow(meta: pd.DataFrame) -> pd.DataFrame:
    """Pass a few rows of these types through Arrow, as upstream's P2P does."""
    try:
        filled = meta_nonempty(meta)
        table = to_pyarrow_table_dispatch(filled, preserve_index=True)
        return from_pyarrow_table_dispatch(meta, table)
    except (TypeError, ValueError, NotImplementedError, pa.ArrowException) as error:
        raise Unsupported(f"Arrow refuses the types: {error}") from error


def _kind(dtype: Any) -> str:
    """Return the kernels' name of a type."""
    if isinstance(dtype, np.dtype):
        if dtype.isnative and dtype.name in _NUMBERS:
            return dtype.name
        if dtype.isnative and dtype.kind in "mM":
            return "time"
    elif isinstance(dtype, pd.DatetimeTZDtype):
        return "time"
    elif isinstance(dtype, pd.StringDtype) and dtype.storage == "pyarrow":
        return "text"
    elif isinstance(dtype, pd.CategoricalDtype):
        return str(pd.Categorical([], dtype=dtype).codes.dtype.name)
    elif isinstance(dtype, pd.api.extensions.ExtensionDtype) and dtype.name in _NULLABLE:
        return str(dtype.name)
    raise _NoKernel


def filled_columns(
    fields: Sequence[Field],
    rows: int,
    text_bytes: Sequence[int],
    fill: Callable[[list[tuple[Any, ...]]], list[int]],
) -> list[Any]:
    """Make arrays of pandas that a kernel fills.

    Parameters
    ----------
    fields : sequence of Field
        The columns.
    rows : int
        Rows of each column.
    text_bytes : sequence of int
        For each part of the columns, the bytes of its text.
    fill : callable
        Fills the memory of all parts, and returns the nulls of each.
    """
    parts = [part for field in fields for part in field.parts]
    targets = [part.targets(rows, size) for part, size in zip(parts, text_bytes, strict=True)]
    nulls = fill(targets)
    values = iter(
        [
            part.values(target, rows, count)
            for part, target, count in zip(parts, targets, nulls, strict=True)
        ]
    )
    return [field.of_parts(list(itertools.islice(values, len(field.parts)))) for field in fields]


def raw_columns(values: Any, kind: str) -> list[RawColumn]:
    """Return the memory of the parts of a column; the arguments are those of `raw_column`."""
    if kind not in _NULLABLE:
        return [raw_column(values, kind)]
    kind = _NULLABLE[kind]
    numbers = np.ascontiguousarray(values.to_numpy(kind, na_value=0))
    is_missing = np.ascontiguousarray(values.isna())
    return [(kind, numbers, None, None, 0), ("bool", is_missing, None, None, 0)]


def raw_column(values: Any, kind: str) -> RawColumn:
    """Return the memory of a column or index; copies only what is not contiguous.

    Parameters
    ----------
    values : pandas.Series or pandas.Index
        The values.
    kind : str
        As in `Field`.
    """
    return _RAW.get(kind, _raw_number)(values, kind)


def _raw_number(values: Any, kind: str) -> RawColumn:
    if isinstance(values.dtype, pd.CategoricalDtype):
        return kind, np.ascontiguousarray(values.array.codes, kind), None, None, 0
    return kind, np.ascontiguousarray(values.to_numpy()), None, None, 0


def _raw_time(values: Any, kind: str) -> RawColumn:
    if isinstance(values.dtype, pd.DatetimeTZDtype):
        return kind, np.ascontiguousarray(pd.DatetimeIndex(values).asi8), None, None, 0
    return kind, np.ascontiguousarray(values.to_numpy()).view(np.int64), None, None, 0


def _raw_text(values: Any, kind: str) -> RawColumn:
    array = pa.array(values.array, type=pa.large_string(), from_pandas=True)
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    # Several chunks of an empty array combine to none.
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], array.type)
    validity, offsets, text = array.buffers()
    first, rows = array.offset, len(array)
    if offsets is None or not rows:
        return kind, b"", np.zeros(1, np.int64), None, 0
    used = np.frombuffer(offsets, np.int64)[first : first + rows + 1]
    # The bits and bytes before the first row stay, and their buffers are not copied.
    return kind, b"" if text is None else text, used, validity, first if validity else 0


_RAW: dict[str, Callable[[Any, str], RawColumn]] = {"time": _raw_time, "text": _raw_text}
