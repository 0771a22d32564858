"""Options and checks that several commands share."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

import click

__all__ = ["TargetType", "need_dask"]


class TargetType(click.ParamType[str]):
    """A file to be written once all is measured: wrong paths are refused before."""

    name = "file"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        path = Path(str(value))
        if path.is_dir() or not os.access(path.parent, os.W_OK):
            self.fail(f"cannot write {str(value)!r}", param, ctx)
        return str(value)


def need_dask() -> None:
    """Say how to get what a Dask benchmark needs, where it is not there.

    Raises
    ------
    click.ClickException
        If the extra is not installed.
    """
    for name in ("distributed", "dask"):
        if importlib.util.find_spec(name) is None:
            raise click.ClickException(
                f"{name} is missing; install it with: pip install 'backhaul[dask]'"
            )
