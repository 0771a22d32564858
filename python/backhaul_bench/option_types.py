"""Kinds of options that several benchmarks take on the command line."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import click

from backhaul._options import TargetType, need_dask
from backhaul._units import parse_bytes, parse_sizes

__all__ = [
    "ChunkType",
    "FolderType",
    "JsonTargetType",
    "ListType",
    "NumbersType",
    "PeersType",
    "ProtocolsType",
    "SizeType",
    "SizesType",
    "SvgTargetType",
]

_FLOAT64_BYTES = 8


class ListType(click.ParamType[tuple[str, ...]]):
    """Comma-separated names out of some, or other words that stand for several of them."""

    name = "list"

    def __init__(self, allowed: tuple[str, ...], **several: tuple[str, ...]) -> None:
        self._allowed = allowed
        self._several = several

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        if isinstance(value, tuple):
            return value
        names: list[str] = []
        for name in (part.strip() for part in str(value).split(",")):
            if name in self._several:
                names.extend(self._several[name])
            elif name in self._allowed:
                names.append(name)
            elif name:
                known = ", ".join([*self._allowed, *self._several])
                self.fail(f"{name!r} is not one of: {known}", param, ctx)
        return tuple(dict.fromkeys(names))


class SizesType(click.ParamType[list[int]]):
    """Comma-separated message sizes."""

    name = "sizes"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> list[int]:
        try:
            return value if isinstance(value, list) else parse_sizes(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


class SizeType(click.ParamType[int]):
    """A size in bytes, at least that of one float64."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            nbytes = value if isinstance(value, int) else parse_bytes(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if nbytes < _FLOAT64_BYTES:
            self.fail(f"{value} is less than {_FLOAT64_BYTES} bytes", param, ctx)
        return nbytes


class ChunkType(SizeType):
    """Rows of a square chunk of float64, or its size: then as many rows as that has room for."""

    name = "rows or size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int) or str(value).strip().isdecimal():
            rows = int(value)
        else:
            rows = math.isqrt(super().convert(value, param, ctx) // _FLOAT64_BYTES)
        if rows < 1:
            self.fail(f"{value} is not above 0", param, ctx)
        return rows


class PeersType(ListType):
    """Names of peers, which are looked up only when asked for."""

    name = "peers"

    def __init__(self) -> None:
        super().__init__(())

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        from backhaul_bench.contenders import peer_names

        self._allowed = tuple(peer_names())
        self._several = {"all": self._allowed, "none": ()}
        return super().convert(value, param, ctx)


class NumbersType(click.ParamType[tuple[float, ...]]):
    """Comma-separated numbers above a limit."""

    name = "numbers"

    def __init__(self, *, above: float = 0.0, whole: bool = False) -> None:
        self._above = above
        self._whole = whole

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[float, ...]:
        if isinstance(value, tuple):
            return value
        numbers = []
        for text in (part.strip() for part in str(value).split(",")):
            if not text:
                continue
            try:
                number = int(text) if self._whole else float(text)
            except ValueError:
                kind = "a whole number" if self._whole else "a number"
                self.fail(f"{text!r} is not {kind}", param, ctx)
            if not number > self._above:
                self.fail(f"{text} is not above {self._above:g}", param, ctx)
            numbers.append(number)
        if not numbers:
            self.fail("name at least one number", param, ctx)
        return tuple(dict.fromkeys(numbers))


class ProtocolsType(click.ParamType[tuple[str, ...]]):
    """Comma-separated URI schemes that Dask knows."""

    name = "protocols"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        if isinstance(value, tuple):
            return value
        parts = (part.strip().removesuffix("://") for part in str(value).split(","))
        schemes = tuple(dict.fromkeys(part for part in parts if part))
        if not schemes:
            self.fail("name at least one protocol", param, ctx)
        need_dask()
        from distributed.comm.registry import get_backend

        for scheme in schemes:
            try:
                get_backend(scheme)
            except ValueError:
                self.fail(f"Dask knows no protocol {scheme!r}; try tcp or backhaul", param, ctx)
        return schemes


class FolderType(click.ParamType[Path]):
    """A folder, which is made if it is not there: the one around it has to be."""

    name = "folder"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        path = Path(str(value))
        there = path if path.exists() else path.parent
        if not there.is_dir() or not os.access(there, os.W_OK):
            self.fail(f"cannot write into {str(value)!r}", param, ctx)
        return path


class JsonTargetType(TargetType):
    """Such a file, or ``-``."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return "-" if value == "-" else super().convert(value, param, ctx)


class SvgTargetType(TargetType):
    """Such a file for a picture that is written without Matplotlib, as SVG alone."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if Path(str(value)).suffix != ".svg":
            self.fail(f"{str(value)!r} does not end in .svg", param, ctx)
        return super().convert(value, param, ctx)
