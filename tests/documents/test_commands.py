"""Commands in documents have such names and options; none of them is run."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from distributed.cli.dask_scheduler import main as dask_scheduler
from distributed.cli.dask_worker import main as dask_worker

from backhaul.cli import main as backhaul_command
from backhaul.dask.launch.command import main as dask_backhaul
from benches.python.__main__ import main as benches
from tests.documents.written import ROOT

#: Commands by what is typed; the longest that fits counts
COMMANDS: dict[str, click.Command] = {
    "dask backhaul": dask_backhaul,
    "dask scheduler": dask_scheduler,
    "dask worker": dask_worker,
    "python -m backhaul": backhaul_command,
    "python -m benches.python": benches,
    "backhaul": backhaul_command,
}

#: Text that may stand before a command: a prompt, variables, another command
BEFORE = r"(?:\S*\$ +)?(?:[A-Z_]+=\S+ +)*(?:(?:chrt -r|nice -n) \d+ +|srun .*? +|[^|`]*\| +)?"
TYPED = re.compile(rf"^{BEFORE}(?:\S*/bin/)?({'|'.join(map(re.escape, COMMANDS))})(?: +(.*))?$")

#: Commands that were weighed, and are not there
NOT_THERE = {"backhaul run program.py"}
#: Texts that only look like commands
NO_COMMANDS = re.compile(r"^backhaul (secret 1:|→)")

DOCUMENTS = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "RELEASING.md")] + sorted(
    (ROOT / "docs").rglob("*.md")
)


def lines_of(text: str) -> Iterator[str]:
    """Give the lines of blocks that are typed, and the code within prose."""
    blocks = r"^ *```(\w*)\n(.*?)^ *```$"
    for language, block in re.findall(blocks, text, re.DOTALL | re.MULTILINE):
        if language in {"console", "sh"}:
            yield from block.replace("\\\n", " ").splitlines()
    prose = re.sub(blocks, "", text, flags=re.DOTALL | re.MULTILINE)
    for code in re.findall(r"`([^`]+)`", prose):
        yield " ".join(code.split())


def commands_of(path: Path) -> Iterator[tuple[str, str, list[str]]]:
    """Give line, command and arguments of what a document tells to type."""
    for line in lines_of(path.read_text(encoding="utf-8")):
        typed = TYPED.match(line)
        if typed is None or "…" in line or line in NOT_THERE or NO_COMMANDS.match(line):
            continue
        arguments = shlex.split(typed[2] or "", comments=True)
        for end in ("&", ">", "|"):
            arguments = arguments[: arguments.index(end)] if end in arguments else arguments
        yield line, typed[1], arguments


def parse(
    command: click.Command, name: str, arguments: list[str], above: click.Context | None = None
) -> None:
    """Let a command take its arguments, and those below it theirs, without running any."""
    # With its settings: a command keeps the help option of the first context that asks for it.
    context = click.Context(command, info_name=name, parent=above, **command.context_settings)
    # Values are of other machines: a parser alone asks for no host and no file.
    _, rest, _ = command.make_parser(context).parse_args(args=list(arguments))
    if isinstance(command, click.Group) and rest:
        found, below, rest = command.resolve_command(context, rest)
        assert below is not None
        parse(below, str(found), rest, context)


@pytest.mark.parametrize(
    "path", [pytest.param(path, id=str(path.relative_to(ROOT))) for path in DOCUMENTS]
)
def test_the_commands_of_a_document_are_there(path: Path) -> None:
    for line, name, arguments in commands_of(path):
        try:
            parse(COMMANDS[name], name, arguments)
        except click.UsageError as error:
            pytest.fail(f"{line!r}: {error.format_message()}")


def test_so_many_are_found_and_a_wrong_one_is_noticed() -> None:
    assert sum(len(list(commands_of(path))) for path in DOCUMENTS) > 150
    for wrong in (["bench", "p2p", "--line", "shm"], ["measure"], ["bench", "speed"]):
        with pytest.raises(click.UsageError):
            parse(backhaul_command, "backhaul", wrong)


def test_targets_of_make_that_documents_tell_of_are_there() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z0-9-]+):", makefile, re.MULTILINE))
    told = {
        found[1]
        for path in DOCUMENTS
        for line in lines_of(path.read_text(encoding="utf-8"))
        if (found := re.match(r"^(?:\$ )?make ([a-z][a-z0-9-]*)", line))
    }
    assert len(told) > 15
    assert told <= targets
