"""Runs the parts of `make test`, each with a log, and says on one screen what came of them.

    python tests/parts.py run test-dask -- python -m pytest …    as the command does, and as it ends
    python tests/parts.py summary test-dask test-rust …           a line for each, failures by name

The facts about a part are read from its output: the closing lines of pytest and of
``cargo test``. A part whose output has none counts as failed, with its last line.

Some tests depend on how busy the machine is, though none should. A few failures are run again, each
test alone, several times. A test that passes each time is unsteady: it is named with its error, and
does not fail the whole.

A test of pytest that hangs ends its process (tests/hangs.py). Another process runs the tests after
it, so one that hangs is one failure.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import resource
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TextIO

__all__ = ["Part", "main", "read", "settle", "summary"]

#: Where the logs are
LOGS: Final = Path(".test-logs")
#: Failures that are named, over all parts; the logs have the rest
NAMED_MAX: Final = 20
#: Reasons to skip that are shown of a part
REASONS_MAX: Final = 3
#: Failures over all parts up to which each of them is run again
AGAIN_MAX: Final = 5
#: Tests of a part that may hang before the rest of it is given up
HANGS_MAX: Final = 3
#: How often a failed test has to pass alone
AGAIN_RUNS: Final = 3
#: Tests of all parts that are named for the processor time that they took
COSTLY_MAX: Final = 10
#: Lines that are shown of an error
ERROR_LINES_MAX: Final = 5

_STATUS = "exit status"
_COMMAND = "command"
_COUNTS = re.compile(r"(\d+) (passed|failed|skipped|errors?|xfailed|xpassed|deselected)\b")
_PYTEST_END = re.compile(r"^=*\s*((?:\d+ [a-z]+(?:, )?)+) in [\d.]+s")
_PYTEST_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+\.py(?:::.*?)?)(?: - .*)?$")
_PYTEST_HEAD = re.compile(r"^_{3,} (?:ERROR at \w+ of )?(\S.*?) _{3,}$")
_PYTEST_SKIPPED = re.compile(r"^SKIPPED \[(\d+)\] [^:]+(?::\d+)?: (.*)")
_PYTEST_HANGS = re.compile(r"^hangs: (\S+\.py::.*)$")
_PYTEST_COST = re.compile(r"^CPU (\d+\.\d) s: (\S.*)$")
_CARGO_END = re.compile(r"^test result: \w+\. (\d+) passed; (\d+) failed; (\d+) ignored")
_CARGO_FAILED = re.compile(r"^test (\S+)(?: - should panic)? \.\.\. FAILED")
_CARGO_HEAD = re.compile(r"^---- (\S+) stdout ----$")
_CARGO_PANIC = re.compile(r"^thread '.*' \(?.*panicked at ")
_CARGO_IGNORED = re.compile(r"^test \S+ \.\.\. ignored(?:, (.*))?")


@dataclass
class Part:
    """Result of a part."""

    name: str
    counts: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    #: The failures that passed when they were run again
    unsteady: list[str] = field(default_factory=list)
    #: The failures that did not end within the time limit of a test
    hung: list[str] = field(default_factory=list)
    #: First lines of the error, by the last part of a test's name
    errors: dict[str, list[str]] = field(default_factory=dict)
    command: list[str] = field(default_factory=list)
    #: How many were skipped, by reason
    skipped: Counter[str] = field(default_factory=Counter)
    #: Of the command; None if it did not end
    status: int | None = None
    seconds: float = 0.0
    #: Of processors, with all that it has started and waited for
    cpu_seconds: float = 0.0
    #: When its log was last written to, in seconds of the clock
    ended_at: float = 0.0
    #: Processor time of the tests that took most, each with its name
    costly: list[tuple[float, str]] = field(default_factory=list)
    last_line: str = ""

    @property
    def has_passed(self) -> bool:
        """Tell whether it ended well, and ran something."""
        return self.status == 0 and self.counts["passed"] > 0 and not self.counts["failed"]

    @property
    def is_accepted(self) -> bool:
        """Tell whether it passed, or had failures that are all unsteady."""
        steady = self.counts["failed"] - len(self.unsteady)
        return self.has_passed or (self.status in (1, 101) and bool(self.unsteady) and not steady)

    def error_of(self, failure: str) -> list[str]:
        """Return the first lines of the error of a failed test."""
        return self.errors.get(failure.split("::", 1)[-1].replace("::", "."), []) or (
            self.errors.get(failure, [])
        )

    def __str__(self) -> str:
        shown = [f"{self.counts[kind]} {kind}" for kind in ("passed", "failed", "skipped")]
        if self.unsteady:
            shown.append(f"{len(self.unsteady)} of the failed unsteady")
        line = f"{self.name:12} {'ok    ' if self.is_accepted else 'FAILED'} {', '.join(shown)}"
        line += f", {self.seconds / 60:.1f} min ({self.cpu_seconds / 60:.1f} of CPU)"
        if not self.has_passed and not self.failures:
            how = "it did not end" if self.status is None else f"{_STATUS} {self.status}"
            line += f"; {how}: {self.last_line[:80]}"
        if self.skipped:
            reasons = [f"{n} {reason[:70]}" for reason, n in self.skipped.most_common(REASONS_MAX)]
            more = len(self.skipped) - len(reasons)
            reasons += [f"{more} other reasons"] if more > 0 else []
            line += "\n" + "\n".join(f"{'':12} skipped: {reason}" for reason in reasons)
        return line


def run(name: str, command: list[str]) -> int:
    """Run a command, show and keep what it prints, and end as it ends."""
    LOGS.mkdir(exist_ok=True)
    began = time.monotonic()
    with (LOGS / f"{name}.log").open("w", errors="replace") as log:
        log.write(f"{_COMMAND} {json.dumps(command)}\n")
        status, hung = _run_once(command, log)
        statuses = [status]
        # One after which no test comes ends with 5.
        while hung is not None and len(statuses) < HANGS_MAX and statuses[-1] != 5:
            status, hung = _run_once([*command, f"--after={hung}"], log)
            statuses.append(status)
        status = next(filter(None, statuses), 0)
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds = f"{time.monotonic() - began:.0f} s, {used.ru_utime + used.ru_stime:.0f} s of CPU"
        log.write(f"\n{_STATUS} {status} after {seconds}\n")
    return status if status >= 0 else 128 - status


def _run_once(command: list[str], log: TextIO) -> tuple[int, str | None]:
    """Run a command; return its status, and the test that hung."""
    hung: str | None = None
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    assert process.stdout is not None
    for line in process.stdout:
        if named := _PYTEST_HANGS.match(line):
            hung = named[1]
        sys.stdout.write(line)
        sys.stdout.flush()
        log.write(line)
        log.flush()
    return process.wait(), hung


def read(name: str) -> Part:
    """Read what came of a part from its log."""
    part = Part(name)
    log = LOGS / f"{name}.log"
    if not log.exists():
        part.last_line = "it was not begun"
        return part
    part.ended_at = log.stat().st_mtime
    first, *lines = log.read_text(errors="replace").splitlines()
    part.command = json.loads(first.removeprefix(_COMMAND))
    for line in lines:
        _read_line(part, line)
    _read_errors(part, lines)
    part.failures = list(dict.fromkeys(part.failures))
    return part


def _read_line(part: Part, line: str) -> None:
    if ended := re.fullmatch(rf"{_STATUS} (-?\d+) after (\d+) s, (\d+) s of CPU", line):
        part.status, part.seconds, part.cpu_seconds = (
            int(ended[1]),
            float(ended[2]),
            float(ended[3]),
        )
    elif counted := _PYTEST_END.match(line):
        for number, kind in _COUNTS.findall(counted[1]):
            part.counts["failed" if kind.startswith("error") else kind] += int(number)
    elif hung := _PYTEST_HANGS.match(line):
        part.hung.append(hung[1])
    elif cost := _PYTEST_COST.match(line):
        part.costly.append((float(cost[1]), cost[2]))
    elif counted := _CARGO_END.match(line):
        for kind, number in zip(("passed", "failed", "skipped"), counted.groups(), strict=True):
            part.counts[kind] += int(number)
    elif failed := _PYTEST_FAILED.match(line) or _CARGO_FAILED.match(line):
        part.failures.append(failed[1])
    elif skipped := _PYTEST_SKIPPED.match(line):
        part.skipped[skipped[2]] += int(skipped[1])
    elif ignored := _CARGO_IGNORED.match(line):
        part.skipped[ignored[1] or "longer runs, ignored unless asked for"] += 1
    if line.strip() and not line.startswith(_STATUS):
        part.last_line = line.strip()


def _read_errors(part: Part, lines: list[str]) -> None:
    error: list[str] = []
    follows = 0
    for line in lines:
        if head := _PYTEST_HEAD.match(line) or _CARGO_HEAD.match(line):
            error = part.errors.setdefault(head[1], [])
        elif line.startswith("E  "):
            error.append(line[1:].strip())
        elif _CARGO_PANIC.match(line):
            follows = ERROR_LINES_MAX
        if follows:
            error.append(line)
            follows -= 1


def command_again(part: Part, failure: str) -> list[str] | None:
    """Make the command that runs a failed test alone; None if there is no way to."""
    command = part.command
    if "pytest" in command:
        return [*command[: command.index("pytest") + 1], "-p", "no:cacheprovider", failure]
    if "cargo" in command and "--" not in command:
        return [*command, "--", "--exact", failure]
    return None


def run_again(part: Part, failure: str) -> bool:
    """Run a failed test alone, and tell whether it passes each time."""
    command = command_again(part, failure)
    if command is None:
        return False
    name = f"{part.name}-again"
    for _ in range(AGAIN_RUNS):
        print(f"again: {part.name}: {failure}", flush=True)
        with contextlib.redirect_stdout(io.StringIO()):
            run(name, command)
        if not read(name).has_passed:
            return False
    return True


def settle(parts: list[Part]) -> None:
    """Run a few failures again, and note those that are unsteady."""
    if sum(part.counts["failed"] for part in parts) > AGAIN_MAX:
        return
    for part in parts:
        part.unsteady = [
            failure
            for failure in part.failures
            if failure not in part.hung and run_again(part, failure)
        ]


def summary(parts: list[Part]) -> str:
    """Say what came of all parts; the last line has the sums."""
    lines = [*map(str, parts), *_costly_lines(parts)]
    failures = [(part, failure) for part in parts for failure in part.failures]
    for part, failure in failures[:NAMED_MAX]:
        kind = "unsteady, passes alone: " if failure in part.unsteady else ""
        kind = "hangs: " if failure in part.hung else kind
        lines.append(f"  {part.name}: {kind}{failure}")
        if len(failures) <= AGAIN_MAX:
            lines += [f"      {line[:160]}" for line in part.error_of(failure)[:ERROR_LINES_MAX]]
    if len(failures) > NAMED_MAX:
        lines.append(f"  and {len(failures) - NAMED_MAX} more, in {LOGS}/")
    sums = sum((part.counts for part in parts), Counter[str]())
    # A part that ended without saying which test failed is a failure, too.
    silent = sum(not part.has_passed and not part.counts["failed"] for part in parts)
    unsteady = sum(len(part.unsteady) for part in parts)
    lines.append(
        f"total: {sums['passed']} passed, {sums['failed'] - unsteady + silent} failed, "
        f"{sums['skipped']} skipped" + (f", {unsteady} unsteady" if unsteady else "") + _took(parts)
    )
    return "\n".join(lines)


def _costly_lines(parts: list[Part]) -> list[str]:
    costly = sorted((cost for part in parts for cost in part.costly), reverse=True)[:COSTLY_MAX]
    lines = [f"  {seconds:5.1f} s of CPU: {name[:120]}" for seconds, name in costly]
    return ["most processor time, of Python:", *lines] if lines else []


def _took(parts: list[Part]) -> str:
    """Say how long parts took that ran beside one another."""
    ran = [part for part in parts if part.ended_at]
    if not ran:
        return ""
    began_at = min(part.ended_at - part.seconds for part in ran)
    seconds = max(part.ended_at for part in ran) - began_at
    cpu_seconds = sum(part.cpu_seconds for part in ran)
    return f"; {seconds / 60:.1f} min ({cpu_seconds / 60:.1f} of CPU)"


def main(arguments: list[str]) -> int:
    """Run a part, or sum up; ends with 2 for what is neither."""
    match arguments:
        case ["run", name, "--", *command] if command:
            return run(name, command)
        case ["summary", *names] if names:
            parts = [read(name) for name in names]
            settle(parts)
            print(summary(parts))
            return 0 if all(part.is_accepted for part in parts) else 1
        case _:
            print(__doc__, file=sys.stderr)
            return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
