"""``backhaul doctor``."""

from __future__ import annotations

import click

from backhaul._brief import BriefCommand

__all__ = ["AddressType", "doctor"]

_TOPICS = ("lanes", "peers", "limits", "gpu", "rdma", "ucx", "dask")
_MARKS = {"works": "+", "limited": "~", "absent": "-", "broken": "!"}
_STYLES = {"works": "green", "limited": "yellow", "absent": "dim", "broken": "bold red"}


class _TopicType(click.Choice[str]):
    """A topic, or the address of a scheduler."""

    def __init__(self) -> None:
        super().__init__(_TOPICS)

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Let addresses pass, which have a scheme."""
        if "://" not in value:
            return super().convert(value, param, ctx)
        return AddressType().convert(value, param, ctx)


class AddressType(click.ParamType[str]):
    """Address of a scheduler."""

    name = "address"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Check scheme, host and port."""
        scheme, _, location = value.partition("://")
        host, _, port = location.rpartition(":")
        if not scheme or not host or not port.isdecimal() or not 0 < int(port) <= 65535:
            self.fail(
                f"{value!r} is no address of a scheduler, such as tcp://host:8786", param, ctx
            )
        return value


@click.command(cls=BriefCommand, short_help="Try what works here, or in a running cluster.")
@click.argument("topics", nargs=-1, type=_TopicType())
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--strict", is_flag=True, help="Exit with 3 if something is limited or absent.")
@click.pass_context
def doctor(context: click.Context, topics: tuple[str, ...], *, as_json: bool, strict: bool) -> None:
    """Try what Backhaul can use on this machine, and say what to do about the rest.

    TOPICS: lanes, peers, limits, gpu, rdma, ucx and dask, all of them by default. The address of a
    scheduler, such as tcp://host:8786, has that cluster looked at instead: its versions, its
    workers, and over which lanes they reach each other.

    Exits with 1 if something is broken: it is there, and does not work. With --strict, exits with 3
    if something is limited or absent, so that a script can ask for what it needs:
    backhaul doctor --strict rdma ucx.
    """
    from rich.text import Text

    from backhaul._machine import Machine, installed_versions
    from backhaul._output import open_console, print_json, print_machine
    from backhaul.doctor import State, examine

    machine, versions = Machine.here(), installed_versions("backhaul", "dask", "distributed")
    findings = examine(topics or _TOPICS)
    if as_json:
        plain = [{**vars(finding), "state": finding.state.value} for finding in findings]
        print_json(
            {
                "schema": "backhaul.doctor/1",
                "machine": vars(machine),
                "versions": versions,
                "findings": plain,
            }
        )
    else:
        console = open_console(wide=True)
        print_machine(console, machine, versions)
        topic = ""
        for finding in findings:
            if finding.topic != topic:
                topic = finding.topic
                console.print(f"\n{topic}", style="bold", highlight=False)
            state = finding.state.value
            line = Text(f"  {_MARKS[state]} {finding.subject}: ")
            line.append(state, style=_STYLES[state])
            line.append(f", {finding.detail}")
            console.print(line)
            if finding.advice:
                console.print(Text(f"      {finding.advice}", style="italic"))
    states = {finding.state for finding in findings}
    if State.BROKEN in states:
        context.exit(1)
    if strict and states != {State.WORKS}:
        context.exit(3)
