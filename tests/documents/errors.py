"""The reference of the errors: the tree and the docstrings of ``errors.py``."""

from __future__ import annotations

import inspect
import textwrap

from backhaul import errors

__all__ = ["page"]

HEAD = """# Errors

All of Backhaul's own exceptions, in `backhaul` and in `backhaul.errors`. Causes and remedies:
[troubleshooting.md](../guides/troubleshooting.md). The error for each bad input, word for word:
[outcomes.md](../../tests/bad_inputs/outcomes.md).

"""

MIDDLE = """
Over Dask, a comm raises what Dask promises: `CommClosedError` from reads and writes, `OSError` or
`ValueError` from `connect` and `listen`. `backhaul.ucp` raises UCX-Py's exceptions
([from-ucx-py.md](../guides/from-ucx-py.md)).

"""


def page() -> str:
    """Write the page."""
    text = inspect.getdoc(errors)
    assert text is not None
    _, _, tree = text.partition("::\n\n")
    items = (f"- `{name}`: {summary(getattr(errors, name))}" for name in sorted(errors.__all__))
    rows = [
        textwrap.fill(item, 100, subsequent_indent="  ", break_on_hyphens=False) for item in items
    ]
    return HEAD + f"```text\n{inspect.cleandoc(tree)}\n```\n" + MIDDLE + "\n".join(rows) + "\n"


def summary(error: type[BaseException]) -> str:
    """Give the docstring of an error, in one line."""
    return " ".join(inspect.cleandoc(error.__doc__ or "").split())
