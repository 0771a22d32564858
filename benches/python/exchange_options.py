"""Contenders with and without the exchange of dataframes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from backhaul_bench.contenders import ClusterOptions, Configuration

__all__ = ["ExchangeOptions"]

_KEY = "distributed.comm.backhaul.exchange"


@dataclass(frozen=True, kw_only=True)
class ExchangeOptions(ClusterOptions):
    """Options of a benchmark of dataframes."""

    #: Values of ``distributed.comm.backhaul.exchange`` for the clusters over ``backhaul``
    exchanges: Sequence[str] = ("auto",)

    @property
    def configurations(self) -> list[Configuration]:
        """Return the contenders; the others are compared with the first."""
        found = []
        for each in super().configurations:
            if each.protocol != "backhaul":
                found.append(each)
                continue
            for value in self.exchanges:
                name = "" if value == "auto" else f"exchange {value}"
                found.append(replace(each, settings=((_KEY, value),), settings_name=name))
        return found
