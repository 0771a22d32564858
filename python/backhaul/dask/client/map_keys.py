"""Keys of the tasks of `Client.map`: the same ones, without `dask.tokenize` for each.

An expression of `map` names its tasks by the token of the function and that of the arguments of
each. Where arguments are plain, `backhaul.dask.client.keys` computes the latter for all calls in
one go.
"""

from __future__ import annotations

from typing import Any

from dask.tokenize import tokenize

from backhaul.dask.client.keys import tokens_of_calls

__all__ = ["quick_keys"]


def quick_keys(original: Any) -> property:
    """Make a `_MapExpr.keys` that computes the tokens of all calls together."""

    def keys(self: Any) -> Any:
        prefix = self.key
        if not isinstance(prefix, str) or not self.pure or self._cached_keys is not None:
            return original.fget(self)
        token = tokenize(self.func, self.kwargs)
        tokens = tokens_of_calls(token, zip(*self.iterables, strict=False))
        found = [f"{prefix}-{each}" for each in tokens]
        self.operands[-1] = found
        return found

    return property(keys)
