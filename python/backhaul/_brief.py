"""Commands that say what is wrong with their arguments in at most three lines.

click prints the usage, a hint, an empty line and the error. The usage is what ``--help`` is for.
"""

from __future__ import annotations

import sys
from typing import IO, Any

import click
from click.exceptions import NoArgsIsHelpError

__all__ = ["BriefCommand", "BriefGroup"]


class _BriefUsageError(click.UsageError):
    """Bad arguments: what is wrong, and where to look."""

    def show(self, file: IO[Any] | None = None) -> None:
        """Print two lines, the one that says what is wrong last."""
        file = sys.stderr if file is None else file
        if self.ctx is not None:
            click.echo(f"Try '{self.ctx.command_path} --help' for help.", file=file)
        click.echo(f"Error: {_one_line(self.format_message())}", file=file)


def _brief(error: click.UsageError) -> click.UsageError:
    if isinstance(error, (_BriefUsageError, NoArgsIsHelpError)):
        return error
    # Its own words need its class.
    return _BriefUsageError(error.format_message(), ctx=error.ctx)


def _one_line(text: str) -> str:
    return " ".join(text.split())


class BriefCommand(click.Command):
    """A command whose errors are short."""

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        """Read the arguments."""
        try:
            return super().make_context(*args, **kwargs)
        except click.UsageError as error:
            raise _brief(error) from None

    def invoke(self, ctx: click.Context) -> Any:
        """Run it."""
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            raise _brief(error) from None


class BriefGroup(BriefCommand, click.Group):
    """A group of such commands."""

    command_class = BriefCommand
    group_class = type
