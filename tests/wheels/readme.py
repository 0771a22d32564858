"""Runs every block of README with a Backhaul that is installed: in an environment that has it.

::

    ENVIRONMENT/bin/python -I tests/wheels/readme.py

Programs run as they stand. Commands get options that make them short. Targets of make are looked up
only. A block that no runner here accepts is an error.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
DEADLINE_S = 600.0

_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

#: Runs what it reads, also with `await` outside of functions. Not from a file, which processes of
#: workers would run, too.
RUNNER = """
import ast, asyncio, sys

code = compile(sys.stdin.read(), "README.md", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
running = eval(code, globals())
if running is not None:
    asyncio.run(running)
"""

#: Options that make a command short, by what it begins with
SHORT = {
    "backhaul bench transpose-sum": "--size 2000 --chunks 500 --repetitions 1",
    "backhaul bench session": "--case map --tasks 50 --repetitions 1",
    "backhaul bench tasks": "--case map,submit --tasks 50 --saturation 1.1 --repetitions 1",
    "backhaul bench p2p": "--sizes 8,1MiB --rounds 1 --budget 0.05",
}

CLUSTER_JOB = """
import sys
from distributed import Client

with Client(sys.argv[1]) as client:
    client.wait_for_workers(1, timeout=300)
    assert client.gather(client.map(abs, range(-9, 0))) == list(range(9, 0, -1))
    assert all(address.startswith("backhaul://") for address in client.nthreads())
"""


class Reader:
    """Runs blocks, in a folder of its own.

    Parameters
    ----------
    folder : Path
        Where commands leave what they write.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        # The commands of this environment, and nothing of a checkout.
        tools = Path(sys.executable).parent
        self._environment = {**os.environ, "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}"}
        self._environment.pop("PYTHONPATH", None)

    def run(self, language: str, text: str) -> None:
        """Run one block; raises what says that it does not work."""
        if language == "python":
            self.python(text)
        elif language == "console":
            for command in _commands(text):
                self.command(command, text)
        else:
            raise LookupError(f"nobody knows how to run a block of {language}:\n{text}")

    def python(self, text: str) -> None:
        """Run a program."""
        self._run([sys.executable, "-I", "-c", RUNNER], text=text)

    def command(self, command: str, block: str) -> None:
        """Run a command that one types."""
        if command.startswith("make "):
            target = command.split()[1]
            if not re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE):
                raise LookupError(f"there is no target {target}")
        elif command == "dask backhaul scheduler":
            worker = next(line for line in _commands(block) if line.startswith("dask backhaul wo"))
            self.cluster(shlex.split(command), shlex.split(worker))
        elif command.startswith("dask backhaul worker "):
            # It ran with the scheduler.
            return
        else:
            known = (options for part, options in SHORT.items() if part in command)
            self._run(["bash", "-o", "pipefail", "-c", f"{command} {next(known)}"])

    def cluster(self, scheduler: list[str], worker: list[str]) -> None:
        """Start a scheduler, workers, and a client that says ``tcp://``."""
        # Any port: another process may have the usual one.
        options = ["--host", "127.0.0.1", "--port", "0,0", "--no-dashboard"]
        with self._start([*scheduler, *options]) as first:
            try:
                assert first.stdout is not None
                address = next(
                    found[1] for line in first.stdout if (found := re.search(r"(tcp://\S+)", line))
                )
                command = [part.replace("tcp://SCHEDULER:8786", address) for part in worker]
                with self._start([*command, "--no-dashboard"]) as second:
                    try:
                        self._run([sys.executable, "-I", "-c", CLUSTER_JOB, address])
                    finally:
                        second.terminate()
            finally:
                first.terminate()

    def _start(self, command: list[str]) -> subprocess.Popen[str]:
        return subprocess.Popen(
            command,
            cwd=self._folder,
            env=self._environment,
            text=True,
            stdout=subprocess.PIPE if "scheduler" in command else subprocess.DEVNULL,
            stderr=subprocess.STDOUT,
        )

    def _run(self, command: list[str], *, text: str = "") -> None:
        done = subprocess.run(
            command,
            cwd=self._folder,
            env=self._environment,
            input=text,
            text=True,
            capture_output=True,
            timeout=DEADLINE_S,
            check=False,
        )
        if done.returncode != 0:
            said = f"{done.stdout}{done.stderr}"
            raise RuntimeError(f"ended with {done.returncode}: {command}\n{text}\n{said}")


def _commands(text: str) -> Iterator[str]:
    """Give the commands of a block, without what is said about them."""
    for line in text.splitlines():
        if line.startswith("$ "):
            yield line.removeprefix("$ ").split("  #")[0].strip()


def main() -> int:
    """Run all; ends with 1 if one does not work."""
    blocks = _BLOCK.findall(README.read_text())
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        reader = Reader(Path(folder))
        for language, text in blocks:
            try:
                reader.run(language, text)
            except (LookupError, RuntimeError, StopIteration, subprocess.TimeoutExpired) as error:
                wrong += 1
                print(f"A block of README does not work: {error!r:.4000}", file=sys.stderr)
    if not blocks or wrong:
        return 1
    print(f"{len(blocks)} blocks of README work")
    return 0


if __name__ == "__main__":
    sys.exit(main())
