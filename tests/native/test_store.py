"""The store of named objects: one copy for all processes of a user, and nothing after their end."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import backhaul

DEADLINE_S = 120
MIB = 1 << 20

#: Another process: runs each line that it is sent, and answers with a line
PEER = """
import sys, os
import backhaul, numpy as np
for line in sys.stdin:
    try:
        print(repr(eval(line)), flush=True)
    except Exception as error:
        print(type(error).__name__, error, flush=True)
"""


class Peer:
    """Another process that uses the store."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", PEER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, expression: str) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{expression}\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def end(self, number: int = signal.SIGKILL) -> None:
        self.process.send_signal(number)
        self.process.wait(DEADLINE_S)


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    made = tmp_path_factory.mktemp("store") / "objects"
    monkeypatch.setenv("BACKHAUL_STORE_DIR", str(made))
    return made


@pytest.fixture
def peer(folder: Path) -> Iterator[Peer]:
    peer = Peer()
    yield peer
    peer.end()


def names() -> list[str]:
    return [each.name for each in backhaul.stored()]


def test_another_process_reads_what_was_put(peer: Peer) -> None:
    array = np.arange(MIB)
    backhaul.put("numbers", array)
    assert peer.ask("int(backhaul.get('numbers').sum())") == str(array.sum())
    assert peer.ask("backhaul.get('numbers').flags.writeable") == "False"
    assert peer.ask("backhaul.put('theirs', {'a': np.ones(3)})") == "None"
    assert backhaul.get("theirs")["a"].tolist() == [1, 1, 1]
    (mine, theirs) = backhaul.stored()
    assert (mine.name, mine.pid) == ("numbers", os.getpid())
    assert mine.nbytes >= array.nbytes
    assert theirs.pid == peer.process.pid


@pytest.mark.parametrize(
    "obj",
    [
        None,
        "text",
        b"",
        {"a": [1, 2.5, (3,)]},
        np.zeros((0, 3)),
        np.arange(12).reshape(3, 4)[:, ::2],
        np.asfortranarray(np.arange(6).reshape(2, 3)),
        np.arange(7, dtype=">i2"),
        np.array(["x", None], dtype=object),
    ],
    ids=repr,
)
def test_an_object_comes_back_equal(folder: Path, obj: object) -> None:
    backhaul.put("it", obj)
    found = backhaul.get("it")
    if isinstance(obj, np.ndarray):
        assert found.dtype == obj.dtype
        np.testing.assert_array_equal(found, obj)
    else:
        assert found == obj
    frame = pd.DataFrame({"a": range(5), "b": list("abcde")})
    backhaul.put("frame", frame)
    pd.testing.assert_frame_equal(backhaul.get("frame"), frame)


def test_what_one_caller_changes_no_other_sees(folder: Path) -> None:
    backhaul.put("list", [1])
    backhaul.get("list").append(2)
    assert backhaul.get("list") == [1]
    backhaul.put("array", np.arange(6))
    backhaul.get("array").shape = (2, 3)
    assert backhaul.get("array").shape == (6,)
    with pytest.raises(ValueError, match="read-only"):
        backhaul.get("array")[0] = 1


def test_an_object_of_a_process_goes_with_it_and_one_that_is_mapped_stays(peer: Peer) -> None:
    peer.ask("backhaul.put('short', np.full(MIB := 1 << 20, 7, np.uint8))")
    peer.ask("backhaul.put('long', 'kept', lifetime='explicit')")
    mapped = backhaul.get("short")
    peer.end()
    assert mapped.sum() == 7 * MIB
    # Until the store changes, this process may be given what it has mapped.
    backhaul.put("other", 1)
    with pytest.raises(backhaul.NotStored, match="short"):
        backhaul.get("short")
    assert names() == ["long", "other"]
    assert backhaul.get("long") == "kept"
    backhaul.remove("long")
    assert names() == ["other"]


def test_names_are_replaced_and_removed_for_all_processes(peer: Peer) -> None:
    backhaul.put("a", 1)
    assert peer.ask("backhaul.get('a')") == "1"
    with pytest.raises(ValueError, match="'a' is stored already"):
        backhaul.put("a", 2)
    backhaul.put("a", 2, replace=True)
    assert peer.ask("backhaul.get('a')") == "2"
    assert peer.ask("backhaul.remove('a')") == "None"
    with pytest.raises(backhaul.NotStored, match="'a' is not stored"):
        backhaul.get("a")
    with pytest.raises(backhaul.NotStored):
        backhaul.remove("a")
    backhaul.put("a", 3)
    assert peer.ask("backhaul.get('a')") == "3"


def test_memory_is_free_after_replacing_and_removing(folder: Path) -> None:
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    backhaul.put("x", 0)
    before = descriptors()
    for number in range(20):
        backhaul.put("x", number, replace=True)
    backhaul.remove("x")
    assert descriptors() < before


def test_bounds_and_bad_names(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("", "x" * 201, "é" * 40):
        with pytest.raises(ValueError, match="1 to 200"):
            backhaul.put(name, 1)
    with pytest.raises(TypeError, match="3"):
        backhaul.put(3, 1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="'ever'"):
        backhaul.put("a", 1, lifetime="ever")  # type: ignore[arg-type]
    for name in (".lock", "../a", "a/b", "..", "ä ö"):
        backhaul.put(name, name)
        assert backhaul.get(name) == name
    assert sorted(names()) == sorted([".lock", "../a", "a/b", "..", "ä ö"])
    with pytest.raises((pickle.PicklingError, TypeError, AttributeError)):
        backhaul.put("lambda", lambda: None)


def test_a_store_that_is_full_refuses(peer: Peer) -> None:
    program = (
        "import os, backhaul\n"
        "backhaul.put('a', bytes(100_000))\n"
        "try: backhaul.put('b', bytes(100_000))\n"
        "except MemoryError as error: print(error)\n"
        "backhaul.put('a', bytes(150_000), replace=True)\n"
    )
    environment = {**os.environ, "BACKHAUL_STORE_BYTES": "200000"}
    found = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert "no room for 'b'" in found.stdout
    wrong = subprocess.run(
        [sys.executable, "-c", "import backhaul; backhaul.stored()"],
        env={**environment, "BACKHAUL_STORE_BYTES": "much"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "BACKHAUL_STORE_BYTES must be a number of bytes, got 'much'" in wrong.stderr


def test_files_that_are_no_objects_are_refused_and_left(folder: Path) -> None:
    backhaul.put("a", 1)
    (folder / "foreign").write_bytes(b"x" * 1000)
    target = folder.parent / "target"
    target.write_text("precious")
    (folder / "link").symlink_to(target)
    for name in ("foreign", "link"):
        with pytest.raises(backhaul.ObjectError, match=name):
            backhaul.get(name)
    assert names() == ["a"]
    assert (folder / "foreign").exists()
    assert target.read_text() == "precious"
    # The descriptor of something else, as after a number was used again
    (folder / "stale").symlink_to(f"/proc/{os.getpid()}/fd/0")
    assert names() == ["a"]
    assert not (folder / "stale").is_symlink()


def test_a_damaged_object_is_refused(folder: Path) -> None:
    backhaul.put("it", np.arange(100), lifetime="explicit")
    path = folder / "it"
    whole = path.read_bytes()
    path.chmod(0o600)
    for damaged in (whole[:-8], whole[:300], whole[:232] + b"\xff" * 8 + whole[240:]):
        path.write_bytes(damaged)
        backhaul.put("other", 1, replace=True)
        with pytest.raises(backhaul.ObjectError, match="it"):
            backhaul.get("it")


def test_a_folder_of_others_is_refused(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o755)
    with pytest.raises(backhaul.ConfigError, match="must be a folder of this user alone"):
        backhaul.put("a", 1)
    folder.rmdir()
    folder.symlink_to(folder.parent)
    with pytest.raises(backhaul.ConfigError):
        backhaul.stored()


def test_a_forked_child_has_the_objects_but_does_not_own_them(folder: Path) -> None:
    backhaul.put("a", np.arange(5))
    child = os.fork()
    if child == 0:
        try:
            right = backhaul.get("a").sum() == 10
            backhaul.put("child's", 1)
        except BaseException:
            right = False
        os._exit(not right)
    _, status = os.waitpid(child, 0)
    assert status == 0
    assert backhaul.get("a").sum() == 10
    assert names() == ["a"]


def test_many_processes_put_and_read_at_once(folder: Path) -> None:
    peers = [Peer() for _ in range(3)]
    try:
        for peer in peers:
            assert peer.process.stdin is not None
            number = peer.process.pid
            peer.process.stdin.write(
                f"[(backhaul.put('n', np.full(999, {number} * 1000 + i), replace=True), "
                "len(set(backhaul.get('n').tolist())))[1] for i in range(200)]\n"
            )
            peer.process.stdin.flush()
        deadline_s = time.monotonic() + DEADLINE_S
        for peer in peers:
            assert peer.process.stdout is not None
            assert peer.process.stdout.readline().strip() == repr([1] * 200)
        assert time.monotonic() < deadline_s
    finally:
        for peer in peers:
            peer.end()
