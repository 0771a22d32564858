"""The one kind of report that every benchmark gives: rows, and what was measured where."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Generic, TypeVar

from backhaul._machine import Machine
from backhaul_bench.profiles import Profile

__all__ = ["Missing", "Report"]

OptionsT = TypeVar("OptionsT")
RowT = TypeVar("RowT")


@dataclass(frozen=True)
class Missing:
    """A contender that was asked for and is not installed, or failed."""

    peer: str
    reason: str
    #: How to get it; empty if it is there and failed
    install: str


@dataclass(frozen=True, kw_only=True)
class Report(Generic[OptionsT, RowT]):
    """Everything that a run found."""

    #: Names the layout
    schema: str
    machine: Machine
    versions: dict[str, str]
    options: OptionsT
    rows: Sequence[RowT]
    #: Contenders that were not measured; None where all are always there
    missing: list[Missing] | None = None
    #: Lanes between the workers, by configuration; None without clusters
    lanes: dict[str, list[str]] | None = None
    #: Where the time went, if that was asked for; None where it cannot be
    profiles: list[Profile] | None = None
    #: Further findings of one benchmark for the whole run
    findings: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Give the report as plain JSON values.

        Returns
        -------
        dict of str to Any
            A spread is median, minimum and maximum. Fields that do not apply are left out; the
            findings stand beside the rest.
        """
        plain = asdict(self)
        findings = plain.pop("findings")
        applying = {key: value for key, value in plain.items() if value is not None}
        return {**applying, **findings}
