"""No message of the public classes speaks of Rust or of what binds it to Python.

Every callable is called with nonsense in each place; what it says must be in words of Python.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import backhaul
from backhaul import Context, _native

NONSENSE: list[Any] = ["nonsense", -1, 1.5, 2**70, object, [1], b"x", None, float("nan"), ["shm"]]

#: Types, structs and enums of Rust as `Debug` writes them, and phrases of PyO3's
FOREIGN = re.compile(
    r"`|\b(Vec|Option|String|usize|u8|u16|u32|u64|i64|f64|PyAny|Bound|Some|None\()\b|::"
    r"|\b[A-Z]\w+ \{|[Cc]an't extract|too big to convert|negative int to unsigned|PyO3|panicked"
)

#: Calls that end what the others need
ENDING = {"close", "abort"}


def messages() -> Iterator[tuple[str, str]]:
    """Call everything, giving each call that fails and what it says."""
    with Context() as context, context.listen("127.0.0.1:0") as listener:
        connecting = context.connect(listener.address)
        endpoint = listener.accept().wait(300)
        peer = connecting.wait(300)
        spare = Context()
        objects = [_native.Arena(), spare, listener, endpoint, _native.Machine.discover()]
        for cls in (_native.Arena, Context, _native.Tls, _native.DeviceBuffer):
            yield from nonsense(cls.__name__, cls)
        for each in objects:
            for name, member in inspect.getmembers(each, callable):
                if not name.startswith("_") and name not in ENDING:
                    yield from nonsense(f"{type(each).__name__}.{name}", member)
        yield from nonsense("Request.wait", peer.recv_frames().wait, timeout=True)
        yield from nonsense("listen", backhaul.listen)
        yield from nonsense("connect", backhaul.connect)
        spare.close()


def nonsense(
    name: str, call: Callable[..., Any], *, timeout: bool = False
) -> Iterator[tuple[str, str]]:
    parameters = inspect.signature(call).parameters.values()
    for wrong in NONSENSE:
        if timeout and (wrong is None or wrong == 1.5 or wrong == 2**70):
            continue
        for tried in parameters:
            positional: list[Any] = []
            named: dict[str, Any] = {}
            for each in parameters:
                if each is not tried and each.default is not each.empty:
                    continue
                value = wrong if each is tried else "1:1"
                if each.kind is each.POSITIONAL_ONLY:
                    positional.append(value)
                else:
                    named[each.name] = value
            try:
                outcome = call(*positional, **named)
            except Exception as error:
                yield f"{name}({tried.name}={wrong!r}): {type(error).__name__}", str(error)
            else:
                end = getattr(outcome, "cancel", getattr(outcome, "close", None))
                if end is not None:
                    end()


def test_messages_are_in_words_of_python() -> None:
    found = list(messages())
    assert len(found) > 200, "the walk does not reach what it is to reach"
    wrong = [f"{call}: {text}" for call, text in found if FOREIGN.search(text)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (
            lambda: Context(lanes="shm"),
            TypeError,
            r"lanes must be a list of names, got 'shm': write lanes=\['shm'\]",
        ),
        (lambda: Context(carriers=1), TypeError, "carriers must be a list of names, got 1"),  # type: ignore[arg-type]
        (lambda: Context(lanes=[1]), TypeError, r"lanes must be a list of names, got \[1\]"),  # type: ignore[list-item]
        (lambda: Context(spin_us="fast"), TypeError, "spin_us must be a number of microseconds"),  # type: ignore[arg-type]
        (lambda: Context(linger_s=-1), backhaul.ConfigError, "linger_s .* 0 or more, got -1"),
        (
            lambda: backhaul.Arena().take(10),
            MemoryError,
            "gives no block of 10 bytes, the smallest has .* block_bytes_min",
        ),
        (
            lambda: backhaul.Arena(bytes_max=1 << 20).take(1 << 21),
            MemoryError,
            "no block of 2097152 bytes: 0 are in use .* bytes_max, is 1048576",
        ),
        (lambda: backhaul.Arena().take(-1), backhaul.ConfigError, r"nbytes must be .* got -1"),
        (lambda: backhaul.Arena().take("1"), TypeError, "nbytes must be an integer, got '1'"),  # type: ignore[arg-type]
    ],
)
def test_an_error_names_the_value_and_what_to_write(
    call: Callable[[], object], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        call()
