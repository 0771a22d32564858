"""Commands that say what is wrong in at most three lines.

click prints the usage, a hint, an empty line and the error. The usage is what ``--help`` is for.
Of an output that cannot be written it says nothing but a traceback.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from typing import IO, Any

import click
from click.exceptions import NoArgsIsHelpError

__all__ = ["BriefCommand", "BriefGroup"]

#: Errors of the kernel for a disk, a quota or a device that takes no more
_FULL = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO))


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

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run what the arguments name, and write all of what it prints.

        Raises
        ------
        SystemExit
            In the end; with 2, and a line on standard error, if the output could not be written.
        """
        try:
            try:
                return super().main(*args, **kwargs)
            except SystemExit:
                if sys.stdout is not None:
                    sys.stdout.flush()
                raise
        except BrokenPipeError:
            # The reader has gone: click ends so, too, if it gets the error in time.
            _write_nothing_more()
            raise SystemExit(1) from None
        except OSError as error:
            if error.errno not in _FULL:
                raise
            # The rest of its buffer stays there, and Python would try it again as it ends.
            _write_nothing_more()
            click.echo(f"Error: the output cannot be written: {error.strerror}", err=True)
            raise SystemExit(2) from None


def _write_nothing_more() -> None:
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
