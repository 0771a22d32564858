"""The command ``backhaul bench`` where the distribution backhaul-bench is not installed."""

from __future__ import annotations

import click

from backhaul._brief import BriefCommand

__all__ = ["bench"]


@click.command(
    cls=BriefCommand,
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    short_help="Measure Backhaul (needs the package backhaul-bench).",
)
def bench() -> None:
    """Say how to get the benchmarks, which are a distribution.

    Raises
    ------
    click.ClickException
        In all cases.
    """
    raise click.ClickException(
        "the benchmarks are in the package backhaul-bench, which is not installed: pip install"
        " 'backhaul[bench]' (with --find-links dist for the wheels of `make wheel`)"
    )
