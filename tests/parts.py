"""Runs the parts of `make test`, each with a log, and says on one screen what came of them.

    python tests/parts.py run test-dask -- python -m pytest …    as the command does, and as it ends
    python tests/parts.py summary test-dask test-rust …           a line for each, failures by name

The facts about a part are read from its output: the closing lines of pytest and of
``cargo test``. A part whose output has none counts as failed, with its last line.
"""

from __future__ import annotations

import re
import resource
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

__all__ = ["Part", "main", "read", "summary"]

#: Where the logs are
LOGS: Final = Path(".test-logs")
#: Failures that are named, over all parts; the logs have the rest
NAMED_MAX: Final = 20
#: Reasons to skip that are shown of a part
REASONS_MAX: Final = 3

_STATUS = "exit status"
_COUNTS = re.compile(r"(\d+) (passed|failed|skipped|errors?|xfailed|xpassed|deselected)\b")
_PYTEST_END = re.compile(r"^=*\s*((?:\d+ [a-z]+(?:, )?)+) in [\d.]+s")
_PYTEST_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)")
_PYTEST_SKIPPED = re.compile(r"^SKIPPED \[(\d+)\] [^:]+(?::\d+)?: (.*)")
_CARGO_END = re.compile(r"^test result: \w+\. (\d+) passed; (\d+) failed; (\d+) ignored")
_CARGO_FAILED = re.compile(r"^test (\S+)(?: - should panic)? \.\.\. FAILED")
_CARGO_IGNORED = re.compile(r"^test \S+ \.\.\. ignored(?:, (.*))?")


@dataclass
class Part:
    """Result of a part."""

    name: str
    counts: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    #: How many were skipped, by reason
    skipped: Counter[str] = field(default_factory=Counter)
    #: Of the command; None if it did not end
    status: int | None = None
    seconds: float = 0.0
    #: Of processors, with all that it has started and waited for
    cpu_seconds: float = 0.0
    last_line: str = ""

    @property
    def has_passed(self) -> bool:
        """Tell whether it ended well, and ran something."""
        return self.status == 0 and self.counts["passed"] > 0 and not self.counts["failed"]

    def __str__(self) -> str:
        shown = [f"{self.counts[kind]} {kind}" for kind in ("passed", "failed", "skipped")]
        line = f"{self.name:12} {'ok    ' if self.has_passed else 'FAILED'} {', '.join(shown)}"
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
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        assert process.stdout is not None
        for line in process.stdout:
            sys.stdout.write(line)
            sys.stdout.flush()
            log.write(line)
            log.flush()
        status = process.wait()
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds = f"{time.monotonic() - began:.0f} s, {used.ru_utime + used.ru_stime:.0f} s of CPU"
        log.write(f"\n{_STATUS} {status} after {seconds}\n")
    return status if status >= 0 else 128 - status


def read(name: str) -> Part:
    """Read what came of a part from its log."""
    part = Part(name)
    log = LOGS / f"{name}.log"
    if not log.exists():
        part.last_line = "it was not begun"
        return part
    for line in log.read_text(errors="replace").splitlines():
        _read_line(part, line)
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


def summary(names: list[str]) -> str:
    """Say what came of all parts; the last line has the sums."""
    parts = [read(name) for name in names]
    lines = [str(part) for part in parts]
    failures = [f"{part.name}: {failure}" for part in parts for failure in part.failures]
    lines += [f"  {failure}" for failure in failures[:NAMED_MAX]]
    if len(failures) > NAMED_MAX:
        lines.append(f"  and {len(failures) - NAMED_MAX} more, in {LOGS}/")
    sums = sum((part.counts for part in parts), Counter[str]())
    # A part that ended without saying which test failed is a failure, too.
    silent = sum(not part.has_passed and not part.counts["failed"] for part in parts)
    lines.append(
        f"total: {sums['passed']} passed, {sums['failed'] + silent} failed, "
        f"{sums['skipped']} skipped"
    )
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    """Run a part, or sum up; ends with 2 for what is neither."""
    match arguments:
        case ["run", name, "--", *command] if command:
            return run(name, command)
        case ["summary", *names] if names:
            print(summary(names))
            return 0 if all(read(name).has_passed for name in names) else 1
        case _:
            print(__doc__, file=sys.stderr)
            return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
