"""Runs the tests of ``distributed`` over its own TCP and over Backhaul, and compares.

::

    git clone --branch 2026.7.1 https://github.com/dask/distributed DIR
    .venv/bin/python -m pip install -r requirements/upstream.txt
    .venv/bin/python tests/dask/upstream/run.py DIR

The checkout must be of the tag that is installed: the wheels have no tests. Each file runs twice,
once for each value of ``BACKHAUL_SUBSTITUTE`` (see ``substitute``). The outcome is a table of the
tests that end differently. Differences that are meant are listed, each with its reason, in
``expected.toml``; the exit status is 1 if there is any other, or a listed one is gone.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import subprocess
import sys
import tempfile
import tomllib
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

HERE = Path(__file__).parent

#: Files that run unless some are named: the comm itself, rpc, lost workers, and the heaviest user
#: of the data path.
FILES = (
    "distributed/comm/tests/test_comms.py",
    "distributed/comm/tests/test_tcp.py",
    "distributed/tests/test_core.py",
    "distributed/tests/test_batched.py",
    "distributed/tests/test_failed_workers.py",
    "distributed/shuffle/tests/test_merge.py",
    "distributed/shuffle/tests/test_shuffle.py",
)

#: Seconds before a test that hangs fails.
TEST_TIMEOUT_S = 600


def main() -> int:
    """Run both, print the comparison, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("checkout", type=Path, help="checkout of dask/distributed")
    parser.add_argument("files", nargs="*", default=FILES, help="test files in the checkout")
    parser.add_argument("-k", dest="keyword", help="passed to pytest")
    parser.add_argument("--runslow", action="store_true", help="include tests marked slow")
    parser.add_argument(
        "--ours",
        choices=["backhaul", "work-in-hand", "scheduler-core", "scheduler-engine", "exchange"],
        default="backhaul",
        help="what to compare",
    )
    parser.add_argument("--only", choices=["control", "ours"], help="run one side")
    parser.add_argument("--test-seconds", type=float, help="time for each test, see `patience`")
    parser.add_argument(
        "--unchecked",
        action="store_true",
        help="steps are not counted, nor those of workers validated",
    )
    parser.add_argument("--log", type=Path, help="folder for the output of pytest")
    options = parser.parse_intermixed_args()

    provide_version_module(options.checkout)
    plugins = []
    if options.test_seconds is not None:
        os.environ["BACKHAUL_TEST_TIMEOUT_S"] = str(options.test_seconds)
        plugins.append("-p patience")
    if options.unchecked:
        os.environ["BACKHAUL_UNCHECKED"] = "1"
        plugins.append("-p unchecked")
    os.environ["PYTEST_ADDOPTS"] = " ".join([*plugins, os.environ.get("PYTEST_ADDOPTS", "")])
    sides = {"control": ["control"], "ours": [options.ours]}.get(
        options.only, ["control", options.ours]
    )
    with tempfile.TemporaryDirectory() as scratch:
        log = options.log or Path(scratch)
        log.mkdir(parents=True, exist_ok=True)
        outcomes = {
            side: run(side, options.checkout, options.files, options.keyword, options.runslow, log)
            for side in sides
        }
    for side, outcome in outcomes.items():
        counts = ", ".join(f"{count} {name}" for name, count in Counter(outcome.values()).items())
        show(f"{side}: {counts}")
    if len(outcomes) < 2:
        return 0
    expected = read_expected(unchecked=options.unchecked, exchange=options.ours == "exchange")
    return compare(outcomes["control"], outcomes[options.ours], *expected)


def provide_version_module(checkout: Path) -> None:
    """Copy the module that only a build makes; refuse a checkout of another version."""
    installed = importlib.metadata.distribution("distributed")
    source = Path(str(installed.locate_file("distributed/_version.py")))
    target = checkout / "distributed" / "_version.py"
    if not target.exists():
        target.write_bytes(source.read_bytes())
    described = subprocess.run(
        ["git", "describe", "--tags", "--exact-match"],
        cwd=checkout,
        capture_output=True,
        text=True,
        check=False,
    )
    tag = described.stdout.strip()
    if tag and tag != installed.version:
        raise SystemExit(
            f"{checkout} is at {tag}, but distributed {installed.version} is installed"
        )


def run(
    side: str, checkout: Path, files: Iterable[str], keyword: str | None, slow: bool, log: Path
) -> dict[str, str]:
    """Run the files over one side.

    Returns
    -------
    dict of str to str
        For each test, ``passed``, ``failed`` or ``skipped``.
    """
    outcome: dict[str, str] = {}
    for file in files:
        # A process for each file: one that hangs or crashes takes no other with it.
        name = f"{side}-{Path(file).stem}"
        report = log / f"{name}.xml"
        command = [
            sys.executable,
            "-m",
            "pytest",
            file,
            "-q",
            "--color=no",
            "-p",
            "no:cacheprovider",
        ]
        command += [f"--junitxml={report}", f"--timeout={TEST_TIMEOUT_S}"]
        command += ["--timeout-method=signal"]
        command += ["-p", "processor_time"]
        # Upstream allows this warning for its own connector, by name.
        command += ["-W", "ignore:coroutine 'BackhaulConnector.connect' was never awaited"]
        # Its tests of IPv6 call what it has deprecated, and would fail before they begin.
        command += ["-W", "ignore:get_ipv6 is deprecated:FutureWarning"]
        command += ["--runslow"] if slow else []
        command += ["-k", keyword] if keyword else []
        environment = dict(os.environ, BACKHAUL_SUBSTITUTE=side)
        paths = [str(HERE), os.environ.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        show(f"{side}: {file}")
        with open(log / f"{name}.log", "wb") as output:
            subprocess.run(
                command,
                cwd=checkout,
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                check=False,
            )
        if not report.exists():
            show((log / f"{name}.log").read_text(errors="replace")[-2000:])
            raise SystemExit(f"pytest did not finish {file}")
        found = read_report(report)
        # By a keyword, none of a file may be meant.
        if not found and keyword is None:
            raise SystemExit(f"pytest ran nothing of {file}, which is relative to {checkout}")
        outcome.update(found)
    return outcome


def read_report(report: Path) -> dict[str, str]:
    """Read a JUnit report: the outcome of each test."""
    outcome = {}
    for case in ElementTree.parse(report).iter("testcase"):
        name = f"{case.get('classname')}::{case.get('name')}".removeprefix("distributed.")
        tags = {child.tag for child in case}
        if tags & {"failure", "error"}:
            outcome[name] = "failed"
        elif "skipped" in tags:
            outcome[name] = "skipped"
        else:
            outcome[name] = "passed"
    return outcome


def read_expected(*, unchecked: bool, exchange: bool) -> tuple[dict[str, str], dict[str, str]]:
    """Read the reasons of tests that end differently, and of those that fail on both sides."""
    expected = tomllib.loads((HERE / "expected.toml").read_text())
    differ, failing = expected["differs"], expected["control_fails"]
    if unchecked:
        differ |= expected["differs_unchecked"]
        failing |= expected["control_fails_unchecked"]
    if exchange:
        differ |= expected["differs_exchange"]
    return differ, failing


def compare(
    control: Mapping[str, str],
    ours: Mapping[str, str],
    differ: Mapping[str, str],
    failing: Mapping[str, str],
) -> int:
    """Print the tests that end differently, and return 1 if that is not what is expected."""
    surprises = 0
    for name in sorted(control.keys() | ours.keys()):
        before, after = control.get(name, "missing"), ours.get(name, "missing")
        if before != after:
            reason = differ.get(name)
            surprises += reason is None
            show(f"| {name} | {before} | {after} | {reason or 'NOT EXPECTED'} |")
        elif name in differ and after == "passed":
            surprises += 1
            show(f"| {name} | {before} | {after} | NO LONGER DIFFERS |")
        elif before == "failed":
            show(f"| {name} | failed | failed | {failing.get(name, 'not listed')} |")
    show(f"{surprises} unexpected")
    return int(surprises > 0)


def show(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    raise SystemExit(main())
