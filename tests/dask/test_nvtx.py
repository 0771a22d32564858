"""Ranges of NVTX, as a tool sees them that NVTX itself loads; and nothing of it where it is off."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

needs_nvtx = pytest.mark.skipif(find_spec("nvtx") is None, reason="nvtx is not installed")

#: A tool: NVTX calls its first function, and then what this puts into the table of functions.
TOOL = r"""
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    uint16_t version, size;
    uint32_t category;
    int32_t color_type;
    uint32_t color;
    int32_t payload_type, reserved;
    uint64_t payload;
    int32_t message_type;
    const char *message;
} Attributes;
typedef struct {
    size_t size;
    int (*functions)(int module, void ****table, unsigned *size);
} Export;
typedef const void *(*ExportTable)(uint32_t id);

enum { CALLBACKS = 1, CORE2 = 5 };
enum { RANGE_START = 2, RANGE_END = 3, REGISTER_STRING = 10, CREATE_DOMAIN = 12 };

static uint64_t last;

static uint64_t start(void *domain, const Attributes *range)
{
    printf("start %s %s %lu\n", (const char *)domain, range->message, ++last);
    return last;
}
static void end(void *domain, uint64_t id) { printf("end %lu\n", id); }
static void *name(void *domain, const char *text) { return strdup(text); }
static void *create(const char *text) { return strdup(text); }

int InitializeInjectionNvtx2(ExportTable export_table)
{
    const Export *export = export_table(CALLBACKS);
    void ***table;
    unsigned size;
    if (!export || !export->functions(CORE2, &table, &size)) return 0;
    *table[RANGE_START] = (void *)start;
    *table[RANGE_END] = (void *)end;
    *table[REGISTER_STRING] = (void *)name;
    *table[CREATE_DOMAIN] = (void *)create;
    setvbuf(stdout, NULL, _IOLBF, 1 << 16);
    return 1;
}
"""

PROGRAM = """
import asyncio, sys
from distributed.comm import connect, listen
import dask
from backhaul.dask import BackhaulComm

async def main():
    reading = asyncio.Event()
    async def echo(comm):
        # The loop wakes the other end in a later turn: this end is in its read by then.
        reading.set()
        await comm.write(await comm.read())
        await comm.close()
    async with listen("backhaul://127.0.0.1", echo) as listener:
        comm = await connect(listener.contact_address)
        await reading.wait()
        # From here on nothing but one message there and back.
        print("connected", flush=True)
        await comm.write({"x": 1})
        assert await comm.read() == {"x": 1}
        print("done", type(comm) is BackhaulComm, "nvtx" in sys.modules, flush=True)
        await comm.close()

asyncio.run(main())
"""


def run(**environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@needs_nvtx
def test_a_tool_sees_what_both_ends_do(tmp_path: Path) -> None:
    (tmp_path / "tool.c").write_text(TOOL)
    tool = tmp_path / "tool.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", tool, tmp_path / "tool.c"], check=True)
    done = run(NVTX_INJECTION64_PATH=str(tool), DASK_DISTRIBUTED__COMM__BACKHAUL__NVTX="True")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    found = lines[lines.index("connected") + 1 : lines.index("done False True")]
    started = [line.split() for line in found if line.startswith("start ")]
    assert {domain for _, domain, _, _ in started} == {"backhaul"}
    # This end writes and reads; the other one, which was reading already, does the same.
    names = [name for _, _, name, _ in started]
    assert sorted(names) == sorted(
        ["serialize", "write", "read", "deserialize", "deserialize", "serialize", "write"]
    )
    # None is left open.
    everything = [line.split() for line in lines if line.startswith(("start ", "end "))]
    opened = {words[-1] for words in everything if words[0] == "start"}
    assert opened == {words[-1] for words in everything if words[0] == "end"}


@pytest.mark.parametrize("switch", ["False", None])
def test_where_it_is_off_nvtx_is_not_imported(switch: str | None) -> None:
    done = run(**({} if switch is None else {"DASK_DISTRIBUTED__COMM__BACKHAUL__NVTX": switch}))
    assert done.stdout.splitlines()[-1] == "done True False", done.stderr


@needs_nvtx
def test_without_a_profiler_comms_are_unchanged() -> None:
    done = run(DASK_DISTRIBUTED__COMM__BACKHAUL__NVTX="True")
    assert done.stdout.splitlines()[-1] == "done True True", done.stderr


def test_where_nvtx_is_missing_it_is_said_and_comms_work(tmp_path: Path) -> None:
    (tmp_path / "nvtx.py").write_text("raise ImportError('no nvtx here')")
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    done = run(PYTHONPATH=path, DASK_DISTRIBUTED__COMM__BACKHAUL__NVTX="True")
    assert done.stdout.splitlines()[-1] == "done True False", done.stderr
    assert done.stderr.count("nothing is marked: no nvtx here; pip install nvtx") == 1
