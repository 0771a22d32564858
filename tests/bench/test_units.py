from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backhaul._units import format_bytes, format_rate, format_us, parse_bytes, parse_sizes


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("8", 8),
        ("1KiB", 1024),
        ("64 kib", 65536),
        ("1.5MB", 1_500_000),
        ("2GiB", 2 << 30),
        ("1TB", 10**12),
        ("1.5 TiB", 3 << 39),
    ],
)
def test_sizes_are_read_with_binary_and_decimal_units(text: str, nbytes: int) -> None:
    assert parse_bytes(text) == nbytes


@pytest.mark.parametrize("text", ["", "KiB", "-1", "1 parsec", "0.3", "1e3"])
def test_what_is_no_size_is_refused_with_its_text(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not|not a whole") as caught:
        parse_bytes(text)
    assert repr(text) in str(caught.value)


def test_a_list_of_sizes_keeps_its_order_and_drops_repetition() -> None:
    assert parse_sizes("1MiB, 8,8,1KiB") == [1 << 20, 8, 1024]


@pytest.mark.parametrize("text", ["", " , ", "0", "8,0"])
def test_a_list_needs_a_size_and_no_size_is_zero(text: str) -> None:
    with pytest.raises(ValueError, match="at least"):
        parse_sizes(text)


@given(st.integers(0, 40).map(lambda power: 2**power))
def test_powers_of_two_survive_writing_and_reading(nbytes: int) -> None:
    assert parse_bytes(format_bytes(nbytes).replace("TiB", "GiB")) in (nbytes, nbytes // 1024)


def test_figures_are_written_with_sensible_digits() -> None:
    assert format_bytes(1536) == "1.50 KiB"
    assert format_rate(5.2e9) == "5.20 GB/s"
    assert format_rate(12e6) == "12.0 MB/s"
    assert [format_us(value) for value in (2.314, 18.44, 1250.2)] == ["2.31", "18.4", "1250"]
