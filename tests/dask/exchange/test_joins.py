"""A join by the kernels equals pandas' merge of the assembled frames."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

pd = pytest.importorskip("pandas")
pytest.importorskip("dask.dataframe")
pytest.importorskip("pyarrow")

columns = pytest.importorskip("backhaul.dask.exchange.columns")
joins = pytest.importorskip("backhaul.dask.exchange.joins")
frame_plans = pytest.importorskip("backhaul.dask.exchange.plans")
tasks = pytest.importorskip("backhaul.dask.exchange.tasks")

HOW = ["inner", "left", "right", "outer"]

#: Values of keys of each type, few so that they repeat
KEYS: dict[str, Callable[[], Any]] = {
    "int64": lambda: np.array([0, -1, 2**62, 7], "i8"),
    "uint8": lambda: np.array([0, 255, 3], "u1"),
    "int16": lambda: np.array([-1, 1, 256], "i2"),
    "bool": lambda: np.array([True, False]),
    "float64": lambda: np.array([0.0, -0.0, np.nan, -np.nan, np.inf, 1e300]),
    "float32": lambda: np.array([0.0, -0.0, np.nan, 1.5], "f4"),
    "datetime": lambda: np.array(["NaT", "2020-01-01", "1960-05-05"], "M8[ns]"),
    "zoned": lambda: pd.DatetimeIndex(["2020-01-01", None, "2021-01-01"], tz="Europe/Berlin"),
    "duration": lambda: np.array(["NaT", 0, 5], "m8[us]"),
    "text": lambda: pd.array(["", None, "a", "\N{SNOWMAN}", "long " * 9], dtype="str"),
}


def take(values: Any, places: list[int]) -> Any:
    """Repeat values in any order, also none of them."""
    return values[np.array(places, "i8") % len(values)]


def frame(values: Any, places: list[int], name: str, key: str) -> Any:
    """Make a frame of a key and a column of each type."""
    rows = len(places)
    found: dict[str, Any] = {key: take(values, places), "both": np.arange(rows) + 0.5}
    for kind, make in KEYS.items():
        found[f"{name}_{kind}"] = take(make(), [place + 1 for place in places])
    return pd.DataFrame(found)


def frame_of_tuples(kinds: Sequence[str], places: list[int], name: str) -> Any:
    """Make a frame of several keys and a column with the number of the row."""
    found = {
        f"key_{kind}": take(KEYS[kind](), [7 * n + p for p in places])
        for n, kind in enumerate(kinds)
    }
    return pd.DataFrame({**found, name: np.arange(len(places), dtype="i4")})


_schemas: dict[Any, Any] = {}


def plan_of(pandas: Any) -> Any:
    """Plan an exchange to one partition."""
    meta = pandas.iloc[:0]
    names = (pandas.columns.name, *pandas.dtypes.items())
    schema = _schemas.get(names) or _schemas.setdefault(names, columns.schema_of(meta))
    return frame_plans.FramePlan(
        token="test",
        meta=meta,
        schema=schema,
        partitions=1,
        wanted=None,
        number_column=None,
        keys=(pandas.columns[0],),
        keeps_index=False,
        memory_bytes=1e9,
    )


def blocks_of(pandas: Any, plan: Any, cuts: list[int]) -> list[Any]:
    """Transfer a frame as several input partitions."""
    edges = [0, *sorted(cut % (len(pandas) + 1) for cut in cuts), len(pandas)]
    return [
        tasks.transfer(pandas.iloc[start:end], plan) for start, end in itertools.pairwise(edges)
    ]


def check(
    left: Any, right: Any, cuts: list[int], *, is_planned: bool = True, **options: Any
) -> None:
    """Compare both ways to merge."""
    options = {
        "how": "inner",
        "left_index": False,
        "right_index": False,
        "suffixes": ("_x", "_y"),
        "indicator": False,
        **options,
    }
    # As Dask makes the types of the result
    how = "left" if options["how"] == "leftsemi" else options["how"]
    merged = left[:0].merge(right[:0], **{**options, "how": how})
    options["result_meta"] = merged.iloc[:0]
    plans = plan_of(left), plan_of(right)
    join = joins.join_plan(plans[0].schema, plans[1].schema, options)
    assert (join is not None) == is_planned
    plan = frame_plans.MergePlan(*plans, options=options, join=join)
    sides = [blocks_of(side, each, cuts) for side, each in zip((left, right), plans, strict=True)]
    found = tasks.unpack_merge(*sides, 0, plan)
    expected = tasks.unpack_merge(*sides, 0, replace(plan, join=None))
    pd.testing.assert_frame_equal(found, expected)
    assert type(found.index) is type(expected.index)
    assert found.columns.name == expected.columns.name
    # The result is private and can be written.
    found.iloc[:, 0] = found.iloc[:, 0]


places = st.lists(st.integers(0, 5), max_size=20)


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("kind", KEYS)
@settings(max_examples=12, deadline=None)
@given(left=places, right=places, cuts=st.lists(st.integers(0, 20), max_size=4))
def test_joins_equal_those_of_pandas(
    kind: str, how: str, left: list[int], right: list[int], cuts: list[int]
) -> None:
    values = KEYS[kind]()
    frames = frame(values, left, "left", "key"), frame(values, right, "right", "key")
    check(*frames, cuts, how=how, left_on="key", right_on="key")


@pytest.mark.parametrize("how", HOW)
@settings(max_examples=12, deadline=None)
@given(left=places, right=places)
def test_joins_on_keys_of_two_names_equal_those_of_pandas(
    how: str, left: list[int], right: list[int]
) -> None:
    values = KEYS["int64"]()
    frames = frame(values, left, "left", "a"), frame(values, right, "right", "b")
    options: dict[str, Any] = {"left_on": ["a"], "right_on": ["b"], "suffixes": (None, "_other")}
    check(*frames, [3], how=how, **options)


@pytest.mark.parametrize("how", [*HOW, "leftsemi"])
@settings(max_examples=12, deadline=None)
@given(
    kinds=st.lists(st.sampled_from(sorted(KEYS)), min_size=2, max_size=3, unique=True),
    left=places,
    right=places,
    cuts=st.lists(st.integers(0, 20), max_size=4),
)
def test_joins_on_several_keys_equal_those_of_pandas(
    how: str, kinds: list[str], left: list[int], right: list[int], cuts: list[int]
) -> None:
    # pandas cannot make an outer join of text where both frames are empty (`ArrowInvalid`).
    assume(left or right)
    frames = frame_of_tuples(kinds, left, "number"), frame_of_tuples(kinds, right, "number")
    if how == "leftsemi":
        frames = frames[0], frames[1].drop(columns="number")
    keys = [f"key_{kind}" for kind in kinds]
    check(*frames, cuts, how=how, left_on=keys, right_on=keys)
    # The last key has another name on the right, so that the result has both.
    renamed = frames[1].rename(columns={keys[-1]: "other"})
    check(frames[0], renamed, cuts, how=how, left_on=keys, right_on=[*keys[:-1], "other"])


@settings(max_examples=20, deadline=None)
@given(kind=st.sampled_from(sorted(KEYS)), left=places, right=places)
def test_semi_joins_equal_those_of_dask(kind: str, left: list[int], right: list[int]) -> None:
    lefts, rights = frame(KEYS[kind](), left, "left", "key"), frame_of_tuples([kind], right, "row")
    rights = rights.drop(columns="row")
    on = f"key_{kind}"
    check(lefts, rights, [1], how="leftsemi", left_on="key", right_on=on)
    check(lefts.rename(columns={"key": on}), rights, [], how="leftsemi", left_on=on, right_on=on)


def test_many_rows_are_joined_in_the_order_of_pandas() -> None:
    random = np.random.default_rng(0)
    for rows, keys in ((3000, 2000), (5000, 100_000)):
        left, right = (
            pd.DataFrame({"key": random.integers(0, keys, rows), name: random.random(rows)})
            for name in ("left", "right")
        )
        left["small"], right["small"] = left["key"] % 7, right["key"] % 7
        for how, names in itertools.product(HOW, (["key"], ["small", "key"])):
            check(left, right, [500, 501, 2000], how=how, left_on=names, right_on=names)


@pytest.mark.parametrize("name", ["names", None])
def test_the_name_of_the_columns_is_that_of_pandas(name: str | None) -> None:
    left = frame(KEYS["text"](), [0, 1, 2, 3], "left", "key")
    right = frame(KEYS["text"](), [3, 2], "other", "key")
    left.columns.name = right.columns.name = name
    check(left, right, [2], left_on="key", right_on="key")


@pytest.mark.parametrize(
    "options",
    [
        {"how": "outer", "indicator": True},
        {"left_on": ["key", "both"], "right_on": ["both", "key"]},
        {"right_on": "other_int16"},
        {"how": "leftsemi"},
    ],
)
def test_other_merges_are_left_to_pandas(options: dict[str, Any]) -> None:
    left = frame(KEYS["int64"](), [0, 1, 2, 2], "left", "key")
    right = frame(KEYS["int64"](), [2, 3], "other", "key")
    check(left, right, [1], is_planned=False, **{"left_on": "key", "right_on": "key", **options})
