"""The reference of the commands: what ``--help`` says, of ``backhaul`` and of ``dask backhaul``."""

from __future__ import annotations

from collections.abc import Iterator

import click

from backhaul.cli import main as backhaul_command
from backhaul.dask.launch.command import main as dask_command

__all__ = ["page"]

HEAD = """# Commands

The output of `--help` of each command; made of the commands themselves, which `tests/documents`
compares with this page. `backhaul` comes with the package, `dask backhaul` where Dask is installed
(`pip install 'backhaul[dask]'`, until a release with the wheel of
[`make wheel`](../first-ten-minutes.md#install)). All of them exit with status 2 where an argument
is wrong, and say so in at most three lines. The shell completes them once it is
[told to](../guides/switching.md#several-hosts-from-the-command-line).

| command | what it does |
|---|---|
"""

#: Characters in a line of a command's help
WIDTH = 96


def page() -> str:
    """Write the page."""
    listed = list(commands(backhaul_command, "backhaul")) + list(
        commands(dask_command, "dask backhaul")
    )
    rows, parts = [], []
    for context in listed:
        command = context.command
        path = context.command_path
        anchor = path.replace(" ", "-")
        rows.append(f"| [`{path}`](#{anchor}) | {command.get_short_help_str(limit=200)} |")
        text = command.get_help(context)
        parts.append(f"\n## {path}\n\n```text\n{text.strip()}\n```\n")
    return HEAD + "\n".join(rows) + "\n" + "".join(parts)


def commands(
    command: click.Command, name: str, above: click.Context | None = None
) -> Iterator[click.Context]:
    """List a command and those below it, in the order of their names."""
    settings = {**command.context_settings, "terminal_width": WIDTH, "max_content_width": WIDTH}
    context = click.Context(command, info_name=name, parent=above, **settings)
    yield context
    if isinstance(command, click.Group):
        for each in command.list_commands(context):
            below = command.get_command(context, each)
            assert below is not None
            yield from commands(below, each, context)
