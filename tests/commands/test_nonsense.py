"""Every option of every command, given nonsense: status 2, at most three lines, no traceback."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from backhaul.cli import main as backhaul_command
from backhaul.dask.launch.command import main as dask_command

NONSENSE = "\N{PILE OF POO} no/such \x07 thing"
LINES_MAX = 3

#: Texts that mean nothing to the command itself, so that nothing in them can be wrong
FREE = {
    ("scheduler", "--preload"): "modules, files or URLs, which Dask loads",
    ("scheduler", "preload_argv"): "for the preloads",
    ("worker", "--preload"): "as of a scheduler",
    ("worker", "--preload-nanny"): "as of a scheduler",
    ("worker", "preload_argv"): "for the preloads",
    ("worker", "--name"): "any name will do",
    ("worker", "--local-directory"): "it is made, with what is above it",
    ("scheduler", "--dashboard-prefix"): "Dask puts it into addresses",
}


def commands(command: click.Command, *path: str) -> Iterator[tuple[click.Command, tuple[str, ...]]]:
    yield command, path
    if isinstance(command, click.Group):
        for name, each in command.commands.items():
            yield from commands(each, *path, name)


def parameters(root: click.Command) -> Iterator[tuple[tuple[str, ...], click.Parameter, str]]:
    for command, path in commands(root):
        for parameter in command.params:
            for option in (*parameter.opts, *parameter.secondary_opts):
                yield path, parameter, option


ALL = [
    pytest.param(root, path, parameter, option, id=" ".join((name, *path, option)))
    for name, root in (("backhaul", backhaul_command), ("dask backhaul", dask_command))
    for path, parameter, option in parameters(root)
]


@pytest.mark.parametrize(("root", "path", "parameter", "option"), ALL)
def test_nonsense_is_refused_in_few_words(
    root: click.Command,
    path: tuple[str, ...],
    parameter: click.Parameter,
    option: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if (path[-1] if path else "", option) in FREE:
        pytest.skip(f"{option} may be anything: {FREE[path[-1], option]}")
    if isinstance(parameter, click.Argument):
        arguments = [NONSENSE]
    elif isinstance(parameter, click.Option) and (parameter.is_flag or parameter.count):
        arguments = [f"{option}={NONSENSE}"]
    else:
        arguments = [option, *[NONSENSE] * parameter.nargs]
    if path[:1] in (("bench",), ("scheduler",)):
        # A command that is let through would run for minutes.
        (command,) = (each for each, where in commands(root) if where == path)
        monkeypatch.setattr(command, "callback", lambda **_: pytest.fail("it was let through"))
    done = CliRunner().invoke(root, [*path, *arguments])
    assert done.exit_code == 2, done.output
    assert isinstance(done.exception, SystemExit), done.exception
    lines = done.output.strip().splitlines()
    assert len(lines) <= LINES_MAX, done.output
    said = " ".join(lines)
    assert option in said or "no/such" in said or parameter.human_readable_name in said, said


@pytest.mark.parametrize(
    ("root", "path"),
    [
        pytest.param(root, path, id=" ".join((name, *path)))
        for name, root in (("backhaul", backhaul_command), ("dask backhaul", dask_command))
        for _, path in commands(root)
    ],
)
def test_an_option_or_command_that_is_not_there_is_refused(
    root: click.Command, path: tuple[str, ...]
) -> None:
    for nonsense in ("--no-such-option", "no-such-command"):
        if nonsense == "no-such-command" and path and path[-1] == "worker":
            continue
        done = CliRunner().invoke(root, [*path, nonsense])
        assert done.exit_code == 2, done.output
        assert len(done.output.strip().splitlines()) <= LINES_MAX, done.output
        assert nonsense in done.output


def test_what_is_refused_is_not_in_the_help() -> None:
    told = CliRunner().invoke(dask_command, ["worker", "--help"]).output
    for option in ("--listen-address", "--contact-address", "--no-nanny", "--scheduler-sni"):
        assert option not in told


@pytest.mark.parametrize("path", [path for _, path in commands(backhaul_command) if path])
def test_summaries_are_whole(path: tuple[str, ...]) -> None:
    told = CliRunner().invoke(backhaul_command, [*path[:-1], "--help"]).output
    (line,) = (each for each in told.splitlines() if each.split()[:1] == [path[-1]])
    assert line.endswith("."), line
    assert not line.endswith("..."), line


def test_the_command_is_a_module_too() -> None:
    command = [sys.executable, "-m", "backhaul", "bench", "p2p", "--sizes", "some"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 2
    assert done.stderr.splitlines()[0] == "Try 'python -m backhaul bench p2p --help' for help."
    assert "'some' is not a size" in done.stderr.splitlines()[1]
