"""Each output partition of the exchange equals that of upstream's P2P."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import dask
from tests.dask.exchange.conftest import Parts

dd = pytest.importorskip("dask.dataframe")
pd = pytest.importorskip("pandas")
pytest.importorskip("pyarrow")

from backhaul.dask.exchange.columns import schema_of  # noqa: E402

#: Sizes and types, which no release of Dask decides
once = pytest.mark.once(reason="the other tests here have the expressions of a release")


def check(parts: Parts, make: Callable[[], Any]) -> None:
    """Compare all partitions; make the frame twice, so that no result is used again."""
    expected = parts(make(), by_exchange=False)
    found = parts(make(), by_exchange=True)
    assert len(found) == len(expected)
    for ours, upstreams in zip(found, expected, strict=True):
        pd.testing.assert_frame_equal(ours, upstreams)
        assert ours.columns.name == upstreams.columns.name


def text(random: np.random.Generator, rows: int, distinct: int = 40) -> Any:
    """Make a text column with nulls, empty values, and characters of several bytes."""
    values = [
        None,
        "",
        "\N{SNOWMAN}",
        *(f"k\N{LATIN SMALL LETTER E WITH ACUTE}y{n}" * (n % 3 + 1) for n in range(distinct)),
    ]
    chosen = random.integers(0, len(values), rows)
    return pd.array([values[number] for number in chosen], dtype="str")


def floats(random: np.random.Generator, rows: int) -> Any:
    """Make numbers with NaN, both zeros and infinities."""
    values = np.array([np.nan, 0.0, -0.0, np.inf, -np.inf, 1.5, 2.0, 3.0, 1e300])
    return values[random.integers(0, len(values), rows)]


def frame(seed: int, rows: int, name: str = "value", *, hi: int = 300) -> Any:
    """Make a frame of all types that the kernels support."""
    random = np.random.default_rng(seed)
    times = pd.Timestamp("2020-01-01") + pd.to_timedelta(random.integers(0, 50, rows), "D")
    times = pd.Series(times).where(random.random(rows) > 0.1)
    return pd.DataFrame(
        {
            "key": random.integers(0, hi, rows),
            name: random.standard_normal(rows),
            f"{name}_f": floats(random, rows),
            f"{name}_t": text(random, rows),
            f"{name}_b": random.random(rows) > 0.5,
            f"{name}_i": random.integers(0, 100, rows).astype("i2"),
            f"{name}_u": random.integers(0, 2**63, rows).astype("u8"),
            f"{name}_w": random.standard_normal(rows).astype("f4"),
            f"{name}_d": times.to_numpy(),
            f"{name}_z": times.dt.tz_localize("Europe/Berlin"),
            f"{name}_p": times.to_numpy() - np.datetime64("2020-01-01"),
        },
        index=pd.Index(random.permutation(rows), name="place"),
    )


def collection(pandas: Any, partitions: int) -> Any:
    """Cut a frame into partitions of different lengths, some of them empty."""
    cuts = np.linspace(0, 1, partitions + 1) ** 1.5 * len(pandas)
    pieces = [pandas.iloc[int(a) : int(b)] for a, b in itertools.pairwise(cuts)]
    return dd.from_map(lambda number: pieces[number], range(partitions), meta=pandas.iloc[:0])


@pytest.mark.parametrize(
    "how",
    ["inner", "outer", "leftsemi", *(pytest.param(how, marks=once) for how in ("left", "right"))],
)
def test_merges_are_equal(parts: Parts, how: str) -> None:
    left, right = frame(1, 3000), frame(2, 2000, "other")
    if how == "leftsemi":
        right = right[["key"]]

    def merged() -> Any:
        return collection(left, 5).merge(
            collection(right, 3), on="key", how=how, shuffle_method="p2p", broadcast=False
        )

    check(parts, merged)


@once
@pytest.mark.parametrize("key", ["f", "t", "b", "i", "u", "w", "d", "z", "p"])
def test_merges_on_each_type_are_equal(parts: Parts, key: str) -> None:
    left, right = frame(3, 150), frame(4, 120, "other")

    def merged() -> Any:
        return collection(left, 4).merge(
            collection(right, 3),
            left_on=f"value_{key}",
            right_on=f"other_{key}",
            how="outer",
            shuffle_method="p2p",
            broadcast=False,
        )

    check(parts, merged)


def test_merges_on_several_keys_of_different_types_are_equal(parts: Parts) -> None:
    left, right = frame(5, 2000, hi=20), frame(6, 1000, hi=20)
    right["value_i"] = right["value_i"].astype("f8")

    def merged() -> Any:
        return collection(left, 4).merge(
            collection(right, 3), on=["key", "value_i", "value_t"], how="outer", broadcast=False
        )

    check(parts, merged)


@pytest.mark.parametrize(
    "options",
    [
        {"left_index": True, "right_index": True},
        {"left_on": "key", "right_index": True},
        {"left_index": True, "right_on": "key", "how": "left"},
        {"on": "key", "suffixes": ("_a", "_b"), "indicator": True, "how": "outer"},
    ],
)
def test_merges_on_indexes_and_with_options_are_equal(
    parts: Parts, options: dict[str, Any]
) -> None:
    left, right = frame(7, 1000), frame(8, 800)

    def merged() -> Any:
        return collection(left, 4).merge(collection(right, 3), broadcast=False, **options)

    check(parts, merged)


@pytest.mark.parametrize(
    "index", ["unnamed", *(pytest.param(index, marks=once) for index in ("text", "time", "range"))]
)
def test_the_index_is_kept(parts: Parts, index: str) -> None:
    pandas = frame(9, 1000)
    random = np.random.default_rng(9)
    if index == "unnamed":
        pandas.index.name = None
    elif index == "text":
        pandas.index = pd.Index(text(random, len(pandas)))
    elif index == "time":
        pandas.index = pd.DatetimeIndex(pandas["value_z"], name="moment")
    else:
        pandas = pandas.reset_index(drop=True)
    check(parts, lambda: collection(pandas, 4).shuffle("key", shuffle_method="p2p"))


@once
# With the numbers of partitions at which their indices take one bit more
@pytest.mark.parametrize("outputs", [1, 2, 129, 257])
def test_shuffles_to_any_number_of_partitions_are_equal(parts: Parts, outputs: int) -> None:
    pandas = frame(10, 2000)[["key", "value_t", "value"]]

    def shuffled() -> Any:
        return collection(pandas, 3).shuffle("key", npartitions=outputs, shuffle_method="p2p")

    check(parts, shuffled)


@once
def test_many_inputs_go_by_a_bundle(parts: Parts) -> None:
    pandas = frame(11, 3000)[["key", "value_t", "value"]]

    def merged() -> Any:
        return collection(pandas, 20).merge(collection(pandas, 15), on="key", broadcast=False)

    check(parts, merged)


@once
@pytest.mark.parametrize("keys", [["value_f"], ["value_t"], ["key", "value_d"]])
def test_shuffles_on_each_type_are_equal(parts: Parts, keys: list[str]) -> None:
    pandas = frame(12, 2000)
    check(parts, lambda: collection(pandas, 5).shuffle(keys, npartitions=7, shuffle_method="p2p"))


@pytest.mark.parametrize("on", ["index", "index name", "column and index name", "expression"])
def test_shuffles_on_an_index_or_an_expression_are_equal(parts: Parts, on: str) -> None:
    pandas = frame(19, 900)[["key", "value_t", "value_i"]]

    def shuffled() -> Any:
        source = collection(pandas, 4)
        options: dict[str, dict[str, Any]] = {
            "index": {"on_index": True},
            "index name": {"on": "place"},
            "column and index name": {"on": ["key", "place"]},
            "expression": {"on": source["key"] % 5},
        }
        return source.shuffle(npartitions=5, shuffle_method="p2p", **options[on])

    check(parts, shuffled)


@once
@pytest.mark.parametrize("values", ["equal", "null text", "NaN", "NaT"])
def test_keys_that_are_all_alike_are_equal(parts: Parts, values: str) -> None:
    pandas = frame(13, 300)
    column = {
        "equal": np.zeros(300, "i8"),
        "null text": pd.array([None] * 300, dtype="str"),
        "NaN": np.full(300, np.nan),
        "NaT": np.full(300, "NaT", "M8[us]"),
    }
    pandas["key"] = column[values]

    def merged() -> Any:
        return collection(pandas, 4).merge(
            collection(pandas[:20], 3), on="key", how="left", broadcast=False
        )

    check(parts, merged)


def arrow_frame(seed: int, rows: int, name: str = "value") -> Any:
    """Make a frame of types that Arrow exchanges."""
    random = np.random.default_rng(seed)
    numbers = random.integers(0, 40, rows)
    is_null = random.random(rows) < 0.2
    words = np.array(["x", "yy", "\N{SNOWMAN}", ""])[numbers % 4]
    found = pd.DataFrame(
        {
            "key": numbers,
            f"{name}_category": pd.Categorical(words),
            f"{name}_numbers": pd.Categorical(numbers % 3),
            f"{name}_Int64": pd.array(numbers, "Int64"),
            f"{name}_Float64": pd.array(numbers / 8, "Float64"),
            f"{name}_boolean": pd.array(numbers > 20, "boolean"),
            f"{name}_string": pd.array(words, "string"),
            f"{name}_int32": pd.array(numbers, "int32[pyarrow]"),
            f"{name}_large": pd.array(words, "large_string[pyarrow]"),
            f"{name}_object": pd.Series(words, dtype=object),
        },
        index=pd.Index(random.permutation(rows), name="place"),
    )
    for column in found.columns[3:]:
        found[column] = found[column].mask(is_null)
    return found


@pytest.mark.parametrize("key", ["Int64", "category", "object"])
def test_merges_of_arrow_tables_are_equal(parts: Parts, key: str) -> None:
    left, right = arrow_frame(30, 300), arrow_frame(31, 60, "other")

    def merged() -> Any:
        return collection(left, 3).merge(
            collection(right, 2),
            left_on=f"value_{key}",
            right_on=f"other_{key}",
            shuffle_method="p2p",
            broadcast=False,
        )

    with dask.config.set({"dataframe.convert-string": False}):
        check(parts, merged)


def nullable_frame(seed: int, rows: int, name: str = "value") -> Any:
    """Make a frame of nullable types and categories of which all partitions have the same."""
    random = np.random.default_rng(seed)
    numbers = random.integers(0, 40, rows)
    words = np.array(["x", "yy", "\N{SNOWMAN}", ""])[numbers % 4]
    found = frame(seed, rows, name).assign(
        **{f"{name}_{kind}": pd.array(numbers, kind) for kind in NULLABLE},
        **{f"{name}_Float64": pd.array(numbers / 8, "Float64")},
        **{f"{name}_boolean": pd.array(numbers > 20, "boolean")},
        **{f"{name}_words": pd.Categorical(words, ["yy", "x", "", "\N{SNOWMAN}"], ordered=True)},
        **{f"{name}_many": pd.Categorical(numbers, range(1000))},
    )
    is_null = random.random(rows) < 0.2
    for column in [f"{name}_{kind}" for kind in (*NULLABLE, "Float64", "boolean", "words", "many")]:
        found[column] = found[column].mask(is_null)
    return found


NULLABLE = ("Int8", "UInt16", "Int64", "Float32")


@pytest.mark.parametrize("how", ["inner", "left", "right", "outer"])
@pytest.mark.parametrize("key", ["key", "value_Int64"])
def test_merges_of_nullable_types_and_categories_are_equal(
    parts: Parts, how: str, key: str
) -> None:
    left, right = nullable_frame(40, 300), nullable_frame(41, 60, "other")

    def merged() -> Any:
        return collection(left, 3).merge(
            collection(right, 2),
            left_on=key,
            right_on=key.replace("value", "other"),
            how=how,
            shuffle_method="p2p",
            broadcast=False,
        )

    check(parts, merged)


@pytest.mark.parametrize(
    "keys", [["value_Int64"], ["value_words", "value_i"], ["value_boolean"], ["value_Float64"]]
)
def test_shuffles_of_nullable_types_and_categories_are_equal(parts: Parts, keys: list[str]) -> None:
    pandas = nullable_frame(42, 300)
    assert schema_of(pandas.iloc[:0]) is not None
    check(parts, lambda: collection(pandas, 3).shuffle(keys, shuffle_method="p2p"))


def test_shuffles_of_arrow_tables_are_equal(parts: Parts) -> None:
    pandas = arrow_frame(33, 300)
    with dask.config.set({"dataframe.convert-string": False}):
        check(parts, lambda: collection(pandas, 3).shuffle("value_object", shuffle_method="p2p"))


def test_categories_that_differ_by_partition_are_joined(parts: Parts) -> None:
    pandas = arrow_frame(32, 300)[["key", "value_category"]]
    pieces = [pandas[start : start + 100].copy() for start in (0, 100, 200)]
    for number, piece in enumerate(pieces):
        words = piece["value_category"].astype(str) + str(number)
        piece["value_category"] = words.astype(object).astype("category")
    meta = pieces[0].iloc[:0]

    def shuffled() -> Any:
        return dd.from_map(lambda number: pieces[number], range(3), meta=meta).shuffle(
            "key", npartitions=4, shuffle_method="p2p"
        )

    expected = parts(shuffled(), by_exchange=False)
    found = parts(shuffled(), by_exchange=True)
    for ours, upstreams in zip(found, expected, strict=True):
        # The order of upstream's categories is that in which parts arrive.
        pd.testing.assert_frame_equal(ours, upstreams, check_categorical=False)
        assert set(ours["value_category"].cat.categories) == set(
            upstreams["value_category"].cat.categories
        )


def test_set_index_and_sort_values_are_equal(parts: Parts) -> None:
    pandas = frame(14, 2000, hi=100_000)
    divisions = (0, 20_000, 50_000, 90_000, 100_000)
    check(
        parts,
        lambda: collection(pandas, 4).set_index(
            "key", divisions=divisions, shuffle_method="p2p", sorted=False
        ),
    )
    check(parts, lambda: collection(pandas, 4).sort_values("key", shuffle_method="p2p"))


def test_drop_duplicates_and_groupby_are_equal(parts: Parts) -> None:
    pandas = frame(15, 2000, hi=50)[["key", "value_i"]]
    check(
        parts,
        lambda: collection(pandas, 4).drop_duplicates(split_out=3, shuffle_method="p2p"),
    )
    check(
        parts,
        lambda: (
            collection(pandas, 4)
            .groupby("key")
            .agg({"value_i": "median"}, split_out=3, shuffle_method="p2p")
        ),
    )


def test_a_part_of_the_outputs_is_equal(parts: Parts) -> None:
    left, right = frame(16, 1000), frame(17, 900, "other")

    def merged() -> Any:
        return collection(left, 6).merge(collection(right, 5), on="key", broadcast=False)

    # Upstream's P2P fails here.
    expected = parts(merged(), by_exchange=False)
    found = parts(merged().partitions[[4, 1]], by_exchange=True)
    for ours, upstreams in zip(found, [expected[4], expected[1]], strict=True):
        pd.testing.assert_frame_equal(ours, upstreams)
    check(parts, lambda: collection(left, 6).shuffle("key", shuffle_method="p2p").partitions[3])


@once
@pytest.mark.parametrize("lie", ["type", "index", "text", "key"])
def test_partitions_that_differ_from_their_meta_are_equal(parts: Parts, lie: str) -> None:
    pandas = frame(18, 400)[["key", "value", "value_t", "value_i"]]
    pieces = [pandas[:100], pandas[100:150], pandas[150:]]
    if lie == "type":
        pieces[1] = pieces[1].astype({"value_i": "f8"})
    elif lie == "index":
        pieces[1].index = pieces[1].index.astype("f8")
    elif lie == "text":
        pieces[1] = pieces[1].astype({"value_t": object})
    else:
        pieces[1] = pieces[1].astype({"key": "f4"})

    def shuffled() -> Any:
        return dd.from_map(
            lambda number: pieces[number], range(3), meta=pandas.iloc[:0], enforce_metadata=False
        ).shuffle("key", npartitions=4, shuffle_method="p2p")

    check(parts, shuffled)


@once
@pytest.mark.parametrize("seed", range(12))
def test_random_frames_are_equal(parts: Parts, seed: int) -> None:
    random = np.random.default_rng(seed)
    left = frame(seed, int(random.integers(0, 500)), hi=int(random.integers(1, 200)))
    right = frame(seed + 100, int(random.integers(0, 500)), hi=int(random.integers(1, 200)))
    columns = random.permutation(left.columns[1:])[: random.integers(0, 8)]
    left, right = left[["key", *columns]], right[["key", *columns[:3]]]
    how = random.choice(["inner", "left", "right", "outer"])
    inputs = random.integers(2, 9, 2)

    def merged() -> Any:
        return collection(left, inputs[0]).merge(
            collection(right, inputs[1]),
            on="key",
            how=how,
            shuffle_method="p2p",
            broadcast=False,
            npartitions=int(random_outputs),
        )

    random_outputs = random.integers(2, 12)
    check(parts, merged)
