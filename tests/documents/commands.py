"""The reference of the commands: what ``--help`` says, of ``backhaul`` and of ``dask backhaul``."""

from __future__ import annotations

import re
from collections.abc import Iterator

import click

from backhaul.cli import main as backhaul_command
from backhaul.dask.launch.command import main as dask_command

__all__ = ["page"]

HEAD = """# Commands

The output of `--help` of each command. `dask backhaul` needs Dask (`pip install 'backhaul[dask]'`,
until a release with the wheel of [`make wheel`](../first-ten-minutes.md#install)). All of them exit
with status 2 where an argument is wrong.
[Completion](../guides/switching.md#several-hosts-from-the-command-line) in the shell has to be
switched on.
"""

#: Options of every command
EVERYWHERE = re.compile(r"^  -h, --help +Show this message and exit\.\n?", re.MULTILINE)

#: Characters in a line of a command's help
WIDTH = 96


def page() -> str:
    """Write the page."""
    listed = list(commands(backhaul_command, "backhaul")) + list(
        commands(dask_command, "dask backhaul")
    )
    parts = []
    for context in listed:
        text = EVERYWHERE.sub("", context.command.get_help(context) + "\n")
        text = text.replace("\nOptions:\n\n", "\n").strip().removesuffix("\n\nOptions:")
        parts.append(f"\n## {context.command_path}\n\n```text\n{text}\n```\n")
    return HEAD + "".join(parts)


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
