from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backhaul_bench.summary import quantile, spread

FLOATS = st.floats(-1e9, 1e9)


@given(st.lists(FLOATS, min_size=1), st.floats(0, 1))
def test_quantiles_are_those_of_numpy(values: list[float], q: float) -> None:
    assert quantile(values, q) == pytest.approx(float(np.quantile(values, q)), abs=1e-6)


@given(st.lists(FLOATS, min_size=1))
def test_the_median_lies_within_the_range(values: list[float]) -> None:
    found = spread(values)
    assert found.minimum == min(values)
    assert found.maximum == max(values)
    assert found.minimum <= found.median <= found.maximum


def test_nothing_has_no_quantile() -> None:
    with pytest.raises(ValueError, match="at least one"):
        quantile([], 0.5)
    with pytest.raises(ValueError, match="from 0 to 1"):
        quantile([1.0], 50)
