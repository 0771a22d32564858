"""Which unwinder a wheel uses: that of the process, libgcc_s, and not one of zig's.

Python ends threads that it does not wait for with ``pthread_exit``, which glibc does by libgcc_s:
it unwinds their stacks, and asks the functions on them what to clean up. Those of Rust ask the
unwinder in turn. zig has none that is shared, and links one of its own into what it makes; asked
about frames that libgcc_s unwinds, it crashes the process. So the wheels are linked against what
stands for libgcc_s, `library`. musl unwinds nothing there, and keeps zig's.

As a program it checks wheels; ``--run`` is for those of this machine: in an environment that has
one of them, a process with threads that wait in Rust ends as it should::

    python -m tests.wheels.unwinder dist/*.whl
    ENVIRONMENT/bin/python tests/wheels/unwinder.py --run
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

__all__ = ["linked_against", "wrong_with"]

LIBRARY = "libgcc_s.so.1"
#: All of libgcc_s that begins like this, as GCC 4.2 had it
FUNCTIONS = (
    "Backtrace", "DeleteException", "FindEnclosingFunction", "Find_FDE", "ForcedUnwind", "GetCFA",
    "GetDataRelBase", "GetGR", "GetIP", "GetIPInfo", "GetLanguageSpecificData", "GetRegionStart",
    "GetTextRelBase", "RaiseException", "Resume", "Resume_or_Rethrow", "SetGR", "SetIP",
)  # fmt: skip
PREFIX = "_Unwind_"

#: Threads that are in Rust, and without the GIL, when the process ends; Python ends them there.
THREADS = """
import threading
import backhaul

context = backhaul.Context(lanes=["tcp"])
listener = context.listen("127.0.0.1:0")
waiting = threading.Barrier(5)

def wait():
    accepting = listener.accept()
    waiting.wait()
    while True:
        try:
            accepting.wait(0.001)
        except backhaul.TimedOut:
            pass

for _ in range(4):
    threading.Thread(target=wait, daemon=True).start()
waiting.wait()
print("ends", flush=True)
"""


def linked_against(target: str, folder: Path) -> list[str]:
    """Make the substitute of libgcc_s while a wheel is linked, and give the options of the linker.

    Parameters
    ----------
    target : str
        Rust's name of it.
    folder : Path
        Where to put the library, which is asked for nothing but its name and its symbols.

    Returns
    -------
    list of str
        Options of rustc; none for a target without glibc.
    """
    if not target.endswith("-gnu"):
        return []
    source, made = folder / "libgcc_s.c", folder / LIBRARY
    source.write_text("".join(f"void {PREFIX}{name}(void) {{}}\n" for name in FUNCTIONS))
    machine = target.split("-")[0]
    command = [sys.executable, "-m", "ziglang", "cc", "-target", f"{machine}-linux-gnu", "-shared"]
    command += ["-nostdlib", f"-Wl,-soname,{LIBRARY}", "-o", str(made), str(source)]
    subprocess.run(command, check=True)
    return ["-C", f"link-arg={made}"]


def wrong_with(wheel: Path) -> str | None:
    """Say what is wrong with the unwinder of a wheel; None if nothing is.

    Parameters
    ----------
    wheel : Path
        For Linux.
    """
    # In the environment that checks wheels, auditwheel has it.
    from elftools.elf.elffile import ELFFile

    if "musllinux" in wheel.name:
        return None
    with zipfile.ZipFile(wheel) as archive, tempfile.TemporaryDirectory() as folder:
        (name,) = (name for name in archive.namelist() if name.endswith(".so"))
        with open(archive.extract(name, folder), "rb") as file:
            dynamic = ELFFile(file).get_section_by_name(".dynamic")
            symbols = ELFFile(file).get_section_by_name(".dynsym")
            needed = {tag.needed for tag in dynamic.iter_tags() if tag.entry.d_tag == "DT_NEEDED"}
            asked = {
                symbol.name
                for symbol in symbols.iter_symbols()
                if symbol.name.startswith(PREFIX) and symbol["st_shndx"] == "SHN_UNDEF"
            }
    # Its own would be hidden, and stripped of their names: then nothing is asked for.
    if LIBRARY not in needed:
        return f"does not need {LIBRARY}"
    missing = {f"{PREFIX}{name}" for name in ("RaiseException", "Resume", "SetIP")} - asked
    return f"has an unwinder of its own: {', '.join(sorted(missing))}" if missing else None


def run(times: int = 10) -> int:
    """End processes while threads wait in Rust, with the Python that runs this."""
    for _ in range(times):
        command = [sys.executable, "-I", "-c", THREADS]
        ended = subprocess.run(command, check=False, timeout=300, stdout=subprocess.DEVNULL)
        if ended.returncode != 0:
            print(f"a process with threads ended with {ended.returncode}", file=sys.stderr)
            return 1
    print(f"{times} processes with threads ended with 0")
    return 0


def main(arguments: list[str]) -> int:
    """Check wheels, or run; ends with 1 if anything is wrong."""
    if arguments == ["--run"]:
        return run()
    found = {name: wrong for name in arguments if (wrong := wrong_with(Path(name))) is not None}
    for name, wrong in found.items():
        print(f"{name} {wrong}", file=sys.stderr)
    return 1 if found or not arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
