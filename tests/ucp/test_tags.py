"""Tags: any hashable object, the same in every process; and numbers that are used as they are."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import fractions
import pathlib
import uuid
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from backhaul.ucp._tags import DEFAULT_TAG, endpoint_tag, forced_tag
from backhaul.ucp.utils import hash64bits

if TYPE_CHECKING:
    from tests.ucp.conftest import Connected, Start

TAGS = """
import datetime, decimal, enum, pathlib, uuid
from backhaul.ucp._tags import endpoint_tag

class Colour(enum.Enum):
    RED = 1

print([endpoint_tag(tag) for tag in (
    "text", b"bytes", "", None, 7, -7, 2**70, 1.5, float("inf"), (1, ("a", None)),
    frozenset({"x", "y", "z"}), Colour.RED, datetime.date(2026, 11, 22), pathlib.PurePath("/a/b"),
    uuid.UUID(int=5), decimal.Decimal("1.25"), int, ..., 1 + 2j,
)])
"""


def test_a_tag_is_the_same_in_every_process(start: Start) -> None:
    programs = [start(TAGS, PYTHONHASHSEED=seed) for seed in ("1", "2")]
    lines = [program.read() for program in programs]
    assert lines[0] == lines[1]
    tags: list[int] = [int(number) for number in lines[0].strip("[]").split(",")]
    assert len(set(tags)) == len(tags)
    for program in programs:
        program.end()


@given(st.one_of(st.integers(), st.floats(allow_nan=False), st.booleans()))
@example(-(2**61) - 1)
def test_equal_numbers_make_equal_tags(number: float) -> None:
    same: list[Any] = [number]
    # NumPy rounds before it compares, and calls equal what is not; Python does not.
    if float(number) == number:
        same.append(np.float64(number))
    if isinstance(number, int) or number.is_integer():
        same += [int(number), decimal.Decimal(int(number)), fractions.Fraction(int(number))]
    assert len({endpoint_tag(one) for one in same}) == 1
    assert len({endpoint_tag(("in a tuple", one)) for one in same}) == 1


@given(
    st.lists(
        st.recursive(
            st.one_of(st.integers(), st.text(), st.binary(), st.none()),
            lambda inner: st.tuples(inner, inner) | st.frozensets(inner),
            max_leaves=5,
        ),
        min_size=2,
        max_size=2,
    )
)
def test_tags_are_equal_exactly_where_objects_are(pair: list[Any]) -> None:
    one, other = pair
    assert (endpoint_tag(one) == endpoint_tag(other)) is (one == other)
    assert 0 <= endpoint_tag(one) < DEFAULT_TAG


def test_numbers_whose_hash_python_shares_differ() -> None:
    assert hash(-1) == hash(-2)
    assert endpoint_tag(-1) != endpoint_tag(-2)
    assert endpoint_tag(2**61 - 1) != endpoint_tag(0)


def test_objects_of_a_program_are_tags() -> None:
    @dataclasses.dataclass(frozen=True)
    class Point:
        x: int
        note: str = dataclasses.field(default="", compare=False)

    class Kind(enum.IntEnum):
        A = 3

    class Own:
        def __hash__(self) -> int:
            return 12345

    assert endpoint_tag(Point(1, "a")) == endpoint_tag(Point(1, "b")) != endpoint_tag(Point(2))
    assert endpoint_tag(Kind.A) == endpoint_tag(3)
    assert endpoint_tag(Own()) == endpoint_tag(Own())
    assert endpoint_tag(np.True_) == endpoint_tag(1)
    assert endpoint_tag(Point) != endpoint_tag(Own)


@pytest.mark.parametrize("tag", [[], {}, ([],), bytearray(b"x")])
@pytest.mark.asyncio
async def test_what_is_not_hashable_is_refused(tag: Any, connected: Connected) -> None:
    async with connected() as (a, b):
        with pytest.raises(TypeError, match="hashable"):
            await a.send(b"x", tag=tag)
        with pytest.raises(TypeError, match="hashable"):
            await b.recv(bytearray(1), tag=tag)


@pytest.mark.parametrize(
    ("tag", "error"),
    [
        ("1", TypeError),
        (1.0, TypeError),
        (None, TypeError),
        (-1, OverflowError),
        (1 << 64, OverflowError),
    ],
)
@pytest.mark.asyncio
async def test_a_forced_tag_is_a_number_of_64_bits(
    tag: Any, error: type[Exception], connected: Connected
) -> None:
    async with connected() as (a, _):
        with pytest.raises(error, match=repr(tag)):
            await a.send(b"x", tag=tag, force_tag=True)
        with pytest.raises(error, match=repr(tag)):
            await a.recv(bytearray(1), tag=tag, force_tag=True)
    assert forced_tag(np.uint64(2**64 - 1)) == 2**64 - 1


@pytest.mark.asyncio
async def test_equal_tags_meet(connected: Connected) -> None:
    now = datetime.datetime(2026, 11, 22, 12, 30)
    pairs: list[tuple[Any, Any]] = [
        (1, True),
        (2.0, np.int64(2)),
        ("a", "a"),
        (("a", 1), ("a", 1.0)),
        (now, now.replace()),
        (pathlib.Path("x/y"), pathlib.Path("x") / "y"),
        (pathlib.Path("x/z"), pathlib.PurePosixPath("x", "z")),
        (uuid.UUID(int=9), uuid.UUID(int=9)),
    ]
    async with connected() as (a, b):
        for i, (sent, _) in enumerate(pairs):
            await a.send(bytes([i]), tag=sent)
        for i, (_, received) in reversed(list(enumerate(pairs))):
            buffer = bytearray(1)
            await b.recv(buffer, tag=received)
            assert buffer[0] == i


def test_hash64bits_tells_texts_apart() -> None:
    assert hash64bits("a", 1) == hash64bits("a", 1) != hash64bits("a", 2)
    assert 0 <= hash64bits(b"x") < 1 << 64
