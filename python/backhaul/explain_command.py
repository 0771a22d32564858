"""``backhaul explain``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from backhaul._brief import BriefCommand
from backhaul._options import TargetType, need_dask
from backhaul._output import print_json
from backhaul.doctor.command import AddressType

__all__ = ["explain"]


@click.command(cls=BriefCommand, short_help="Say what limited the job that ran last.")
@click.argument("address", type=AddressType())
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option(
    "--trace",
    "trace_file",
    metavar="FILE",
    type=TargetType(),
    help="Write the job as a Chrome trace, for Perfetto.",
)
@click.option(
    "--idle",
    type=click.FloatRange(min=0, min_open=True),
    default=1.0,
    show_default=True,
    help="Seconds without a run of a task that separate two jobs.",
)
def explain(*, address: str, as_json: bool, trace_file: str | None, idle: float) -> None:
    """Say what limited the job that ran last on the cluster at ADDRESS, with evidence.

    ADDRESS is that of the scheduler, such as tcp://host:8786. Exits with 1 if the scheduler is not
    reached or has no record of runs. Needs the extra `dask`.
    """
    need_dask()
    from distributed import Client

    from backhaul.dask import explain as find_limit
    from backhaul.doctor.cluster import TIMEOUT_S, advice_for, refusal
    from backhaul.errors import NotObserved

    if (reason := refusal(address)) is not None:
        raise click.ClickException(f"{address} is not reached: {reason}\n{advice_for(reason)}")
    try:
        with Client(address, timeout=TIMEOUT_S, set_as_default=False) as client:
            found: Any = find_limit(client, idle=idle)
        if trace_file is not None:
            Path(trace_file).write_text(json.dumps(found.trace()), encoding="utf-8")
    except (NotObserved, OSError) as error:
        raise click.ClickException(str(error)) from error
    if as_json:
        print_json(found.as_json())
    else:
        click.echo(str(found))
