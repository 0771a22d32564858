"""Keys of tasks: Dask's tokens, with a cache for functions and a short path for plain arguments.

`dask.tokenize` pickles a function twice, to check that both pickles are equal, and normalizes
arguments by a general dispatch. Here the token of a function is computed once and cached. For a
function that is pickled by its name, the cached token stays valid; for one that is pickled by
value, it is valid while all parts of that pickle stay the same (`function_parts`). Numbers and text
are normalized to themselves, as in Dask. The tokens equal Dask's, so a task has the same key on
every client. `dask.tokenize` handles all other arguments.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from types import BuiltinFunctionType, FunctionType
from typing import Any, Final, NamedTuple

from dask.tokenize import normalize_token, tokenize

from backhaul.dask.client.function_parts import are_same, is_at_its_name, parts_of
from backhaul.dask.compat.names import Future

__all__ = ["function_token", "names_of_calls", "tokens_of_calls"]

#: Types whose instances are normalized to themselves; subclasses are not
_PLAIN: Final = frozenset({int, float, complex, bool, str, bytes, type(None)})

#: Cache of the tokens of functions
_known: dict[Any, _Known] = {}
#: Most functions in the cache; a full cache is cleared
_KNOWN_MAX: Final = 1000


def function_token(func: Any, kwargs: dict[str, Any], args: tuple[Any, ...]) -> str:
    """Compute what ``tokenize(func, kwargs, *args)`` gives."""
    if not kwargs:
        parts = [normalized for arg in args if (normalized := _normalized(arg)) is not _UNKNOWN]
        if len(parts) == len(args) and (known := _of_function(func)) is not None:
            text = f"{known.head}{''.join(f', {part!r}' for part in parts)})"
            return str(_md5(text.encode()).hexdigest())
    return tokenize(func, kwargs, *args)


def names_of_calls(prefix: str, token: str, iterables: Sequence[Iterable[Any]]) -> list[str]:
    """Make the keys of the tasks of a map: ``{prefix}-{tokenize(token, args)}`` for each call.

    The iterables are the arguments, each of which can be iterated several times.
    """
    (one, *others) = iterables
    if not others and (type(one) is range or _PLAIN.issuperset(map(type, one))):
        # As `tokens_of_calls`, for one plain argument: the text of a tuple with one item.
        head = f"({token!r}, ('tuple', ("
        md5 = _md5
        return [f"{prefix}-{md5(f'{head}{arg!r},)))'.encode()).hexdigest()}" for arg in one]
    tokens = tokens_of_calls(token, zip(*iterables, strict=False))
    return [f"{prefix}-{each}" for each in tokens]


def tokens_of_calls(token: str, calls: Iterable[tuple[Any, ...]]) -> list[str]:
    """Compute what ``tokenize(token, args)`` gives for the arguments of each call."""
    head = f"({token!r}, ('tuple', "
    md5 = _md5
    return [
        md5(f"{head}{args!r}))".encode()).hexdigest()
        if _PLAIN.issuperset(map(type, args))
        else tokenize(token, args)
        for args in calls
    ]


def _quickest_md5() -> Callable[[bytes], Any]:
    """Return the constructor of MD5 digests: the interpreter's takes half the time of OpenSSL's."""
    try:
        return import_module("_md5").md5  # type: ignore[no-any-return]
    except ImportError:
        return functools.partial(hashlib.md5, usedforsecurity=False)


_md5: Final = _quickest_md5()


#: Marks an argument that `dask.tokenize` has to normalize
_UNKNOWN: Final = object()


def _normalized(value: Any) -> Any:
    """Return the normalized form of a plain argument or future; `_UNKNOWN` for all others."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is Future and normalize_token.dispatch(kind) is _OF_OBJECTS:
        return value.__dask_tokenize__()
    return _UNKNOWN


class _Known(NamedTuple):
    """A function whose token was computed."""

    #: Dask's normalizer that was used
    normalize: Callable[[Any], Any]
    #: Beginning of the text whose digest is the token of a call
    head: str
    #: Parts on which the pickle of a function by value depends; None if pickled by name
    parts: list[Any] | None


def _of_function(func: Any) -> _Known | None:
    """Return the function's part of a token; None if only Dask can compute it."""
    kind = type(func)
    if kind is not FunctionType and kind is not BuiltinFunctionType:
        return None
    is_named = not getattr(func, "__dict__", None) and is_at_its_name(func)
    if not is_named and kind is not FunctionType:
        return None
    parts = None if is_named else parts_of(func)
    if not is_named and parts is None:
        return None
    normalize = normalize_token.dispatch(kind)
    known = _known.get(func)
    if known is not None and known.normalize is normalize and _same(known.parts, parts):
        return known
    normalized = normalize(func)
    # Dask gives a new token on each call to a function whose pickles differ.
    if parts is not None and normalize(func) != normalized:
        return None
    if len(_known) >= _KNOWN_MAX:
        _known.clear()
    known = _known[func] = _Known(normalize, f"({normalized!r}, ('dict', ())", parts)
    return known


def _same(parts: list[Any] | None, others: list[Any] | None) -> bool:
    if parts is None or others is None:
        return parts is others
    return are_same(parts, others)


#: Dask's fallback normalizer, used for types without a registered one
_OF_OBJECTS: Final = normalize_token.dispatch(object)
