"""Sorts: rows go to the partitions of Dask's `set_partitions_pre`, which Dask does not run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client

from tests.dask.exchange.conftest import Graph, Parts, kept
from tests.dask.exchange.test_equal import check, collection, frame

dd = pytest.importorskip("dask.dataframe")
pd = pytest.importorskip("pandas")
pytest.importorskip("pyarrow")

from backhaul.dask.compat.names import set_partitions_pre  # noqa: E402
from backhaul.dask.exchange.assignments import ByDivisions, raw_divisions  # noqa: E402
from backhaul.dask.exchange.columns import field_of, schema_of  # noqa: E402
from backhaul.dask.exchange.plans import FramePlan  # noqa: E402
from backhaul.dask.exchange.tasks import transfer, unpack  # noqa: E402

#: One column of `frame` for each type
KEYS = ("key", *(f"value_{each}" for each in "ftbiuwdzp"))


def plan_of(pandas: Any, key: str, divisions: Any, *, ascending: bool, na_position: str) -> Any:
    field = field_of(key, pandas[key].dtype)
    assert field is not None
    raw = raw_divisions(divisions, field)
    assert raw is not None
    assignment = ByDivisions("_partitions", key, (divisions, ascending, na_position), raw)
    return FramePlan(
        token="sort",
        meta=pandas.iloc[:0].assign(_partitions=0),
        schema=schema_of(pandas.iloc[:0]),
        partitions=len(divisions) - 1,
        wanted=None,
        number_column="_partitions",
        keys=(),
        keeps_index=True,
        memory_bytes=1e9,
        assignment=assignment,
    )


@pytest.mark.parametrize("ascending", [True, False])
@pytest.mark.parametrize("na_position", ["first", "last"])
@pytest.mark.parametrize("key", KEYS)
def test_rows_go_to_the_partitions_of_dask(key: str, na_position: str, ascending: bool) -> None:
    pandas = frame(20, 400)
    known = pandas[key].dropna().drop_duplicates().sort_values().reset_index(drop=True)
    # Neither the least values nor the largest are between the divisions.
    divisions = known.iloc[np.linspace(len(known) // 5, len(known) * 4 // 5, 6).astype(int)]
    divisions = divisions.reset_index(drop=True)
    expected = set_partitions_pre(pandas[key], divisions, ascending, na_position)
    plan = plan_of(pandas, key, divisions, ascending=ascending, na_position=na_position)
    for native in (True, False):
        # A frame of other types has its numbers from Dask.
        given = pandas if native else pandas.astype({"value_i": "i4"})
        block = transfer(given, plan)
        for slot in range(plan.partitions):
            found = unpack([block], slot, plan)
            # Without rows, the types are those that the collection has.
            wanted = given[expected == slot] if (expected == slot).any() else pandas.iloc[:0]
            pd.testing.assert_frame_equal(found, wanted)


@pytest.mark.parametrize(
    ("divisions", "column"),
    [
        (pd.Series([0.0, 0.5, 1.0]), pd.Series([1, 2])),
        (pd.Series([0, 2**40]), pd.Series([1, 2], dtype="i4")),
        (pd.Series([0.0, np.nan]), pd.Series([0.5])),
        (pd.Series([1, 0, 2]), pd.Series([1])),
        (pd.Series([1]), pd.Series([1])),
        (pd.Series([1, 2], dtype="Int64"), pd.Series([1], dtype="Int64")),
    ],
    ids=["floats", "too large", "missing", "unsorted", "one", "nullable"],
)
def test_other_divisions_are_left_to_dask(divisions: Any, column: Any) -> None:
    field = field_of("key", column.dtype)
    assert field is not None
    assert raw_divisions(divisions, field) is None


def test_divisions_of_a_wider_type_are_compared_in_the_type_of_the_key() -> None:
    field = field_of("key", np.dtype("i2"))
    assert field is not None
    found = raw_divisions(pd.Series([0, 100]), field)
    assert found is not None
    assert found[0] == "int16"


@pytest.mark.parametrize("key", ["key", "value_f", "value_d", "value_i"])
@pytest.mark.parametrize("ascending", [True, False])
def test_sorts_are_equal(parts: Parts, key: str, ascending: bool) -> None:
    pandas = frame(21, 1000, hi=100_000)
    options = {"ascending": ascending, "na_position": "first" if ascending else "last"}
    check(parts, lambda: collection(pandas, 4).sort_values(key, shuffle_method="p2p", **options))


@pytest.mark.parametrize("key", ["key", "value_i", "text"])
def test_indexes_are_equal(parts: Parts, key: str) -> None:
    pandas = frame(22, 1000, hi=100_000)
    pandas["text"] = pandas["key"].astype("str")
    check(parts, lambda: collection(pandas, 4).set_index(key, shuffle_method="p2p")[["value"]])
    check(parts, lambda: collection(pandas, 4).set_index(key, shuffle_method="p2p", drop=False))


def source_of(kind: str, client: Client, folder: Path) -> Any:
    pandas = frame(23, 300, hi=100_000)[["key", "value", "value_i"]]
    source = collection(pandas, 3)
    if kind == "parquet":
        source.to_parquet(folder)
        return dd.read_parquet(folder)
    return client.persist(source) if kind == "persisted" else source


@pytest.mark.parametrize("operation", ["sort_values", "set_index", "sort_values of columns"])
@pytest.mark.parametrize("kind", ["tasks", "persisted", "parquet"])
def test_no_task_adds_a_column_of_partition_numbers(
    client: Client, made: list[Graph], tmp_path: Path, kind: str, operation: str
) -> None:
    source = source_of(kind, client, tmp_path)
    if operation == "set_index":
        result = source.set_index("key", shuffle_method="p2p")
    else:
        result = source.sort_values("key", shuffle_method="p2p")
        if "columns" in operation:
            result = result[["value", "key"]]
    made.clear()
    found = kept(result).compute()
    (graph,) = made
    (shuffle,) = (each for each in graph.expressions if type(each).__name__ == "P2PShuffle")
    assert graph.unread == {shuffle.frame._name}
    values = found.index if operation == "set_index" else found["key"]
    assert len(found) == 300
    assert values.is_monotonic_increasing


def test_a_sort_by_a_computed_column_is_equal(parts: Parts) -> None:
    pandas = frame(24, 500)
    check(
        parts,
        lambda: (
            lambda made: made.set_index(made["key"] % 50, shuffle_method="p2p", npartitions=3)
        )(collection(pandas, 4)),
    )
