"""Runs a program many times in forks of one process, which imports its modules once.

``python -m tests.dask.forked MODULE`` imports the module and calls its ``load``, if it has one.
Each line of the standard input is a list of arguments as JSON, with which a fork calls ``main``.
The answer is a line with the exit status and the output of the fork.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path
from typing import IO, Any

__all__ = ["Forks"]

ROOT = Path(__file__).parents[2]

#: After which a fork that hangs is ended
TIMEOUT_S = 300


class Forks:
    """Calls of ``python -m MODULE`` whose imports are shared.

    Parameters
    ----------
    module : str
        Module with a ``main`` that reads `sys.argv` and returns the exit status.
    """

    def __init__(self, module: str) -> None:
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.dask.forked", module],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": "0"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Forks:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.communicate(timeout=TIMEOUT_S)

    def __call__(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run the program to its end."""
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(json.dumps(arguments) + "\n")
        self._server.stdin.flush()
        answer = self._server.stdout.readline()
        assert answer, "the process that forks has ended"
        return subprocess.CompletedProcess(list(arguments), *json.loads(answer))


def _run(main: Any, arguments: list[str], outputs: list[IO[str]]) -> int:
    """Fork, call ``main`` there, and return the exit status."""
    if child := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    signal.alarm(TIMEOUT_S)
    status = 1
    try:
        for descriptor, output in enumerate(outputs, 1):
            os.dup2(output.fileno(), descriptor)
        sys.argv[1:] = arguments
        status = main()
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _serve(module: str) -> None:
    program = importlib.import_module(module)
    if hasattr(program, "load"):
        program.load()
    gc.collect()
    gc.freeze()
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            status = _run(program.main, json.loads(line), [out, err])
            said = [out.seek(0) or out.read(), err.seek(0) or err.read()]
        answers.write(json.dumps([status, *said]) + "\n")
        answers.flush()


if __name__ == "__main__":
    _serve(sys.argv[1])
