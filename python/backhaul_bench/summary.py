"""Summary of repeated measurements: quantiles and spread."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["Spread", "quantile", "spread"]


class Spread(NamedTuple):
    """Median and range of repeated measurements, in the unit of the measurements."""

    median: float
    minimum: float
    maximum: float


def quantile(values: Sequence[float], q: float) -> float:
    """Give the value below which a fraction of the values lies.

    Parameters
    ----------
    values : sequence of float
        Measurements in any order; at least one.
    q : float
        The fraction, from 0 to 1.

    Returns
    -------
    float
        The quantile, in the unit of the values.

    Raises
    ------
    ValueError
        If there are no values, or `q` is outside 0 to 1.

    Notes
    -----
    Linear interpolation between order statistics: type 7 of R. J. Hyndman and Y. Fan, The American
    Statistician 50 (1996) 361-365, which is also numpy's default. Written out because it runs in
    interpreters without numpy.
    """
    if not values:
        raise ValueError("a quantile needs at least one value")
    if not 0 <= q <= 1:
        raise ValueError(f"q must be from 0 to 1, got {q!r}")
    ordered = sorted(values)
    position = q * (len(ordered) - 1)
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return float(ordered[below] + (ordered[above] - ordered[below]) * (position - below))


def spread(values: Sequence[float]) -> Spread:
    """Give median, minimum and maximum.

    Parameters
    ----------
    values : sequence of float
        Measurements in any order; at least one.

    Returns
    -------
    Spread
        In the unit of the values.

    Raises
    ------
    ValueError
        If there are no values.
    """
    return Spread(quantile(values, 0.5), quantile(values, 0), quantile(values, 1))
