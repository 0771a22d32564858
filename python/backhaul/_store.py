"""Named objects that all processes of a user on a host read from one copy in memory.

::

    backhaul.put("model", weights)      # in one process
    weights = backhaul.get("model")     # in any other; arrays are mapped, not copied

An object is a pickle with its buffers beside it (PEP 574) in a sealed memfd, which no process can
change. Its name is a symbolic link to ``/proc/PID/fd/N`` of the process that put it, in a folder of
the user below ``/dev/shm``: the memory lives as long as that process, or a process that has mapped
it, and nothing remains after a kill but the link, which the next `put` or `stored` removes. An
object that is to outlive its process is a file of that folder.

A counter that all processes map changes with each `put` and `remove`: while it stays the same, a
`get` of the same name looks into a dictionary and makes no system call.

Threads: any; `_lock` guards the tables. Processes: a lock of the folder orders `put` and `remove`.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import pickle
import re
import stat
import struct
import urllib.parse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, cast

from backhaul._locks import RLock
from backhaul.errors import ConfigError, NotStored, ObjectError, OutOfMemory

__all__ = ["StoredObject", "get", "put", "remove", "stored"]

#: Variables: the folder, and the most bytes of all objects
_FOLDER_VARIABLE: Final = "BACKHAUL_STORE_DIR"
_BYTES_VARIABLE: Final = "BACKHAUL_STORE_BYTES"

#: Mark and version, name in the folder, bytes of the whole, bytes of the pickle, number of buffers;
#: then offset and bytes of each buffer, the pickle, and the buffers
_HEAD: Final = struct.Struct("<16s200sQQQ")
_PLACE: Final = struct.Struct("<QQ")
_MARK: Final = b"backhaul store 1"
#: Buffers start at multiples of this: the size of a line of the cache
_ALIGNMENT: Final = 64
_BUFFERS_MAX: Final = 1 << 20
#: Longest name, in bytes, as it is written in the folder and in `_HEAD`
_NAME_MAX: Final = 200
#: Buffers in one call of the system: IOV_MAX of Linux
_VECTOR_MAX: Final = 1024
#: Link to a descriptor of a process
_LINK: Final = re.compile(r"/proc/(\d+)/fd/\d+")
_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL


@dataclass(frozen=True, slots=True)
class StoredObject:
    """One object of the store.

    Attributes
    ----------
    name : str
        Its name.
    nbytes : int
        Its memory, in bytes.
    pid : int or None
        The process whose end ends the object; None if it stays until it is removed.
    """

    name: str
    nbytes: int
    pid: int | None


def put(
    name: str,
    obj: object,
    *,
    lifetime: Literal["process", "explicit"] = "process",
    replace: bool = False,
) -> None:
    """Put an object into the store of this host.

    Parameters
    ----------
    name : str
        Up to 200 characters; others than letters, digits and ``_.-~`` count as three or more.
    obj : object
        Whatever `pickle` takes. The memory of NumPy arrays, Arrow tables and pandas frames is
        copied once.
    lifetime : {"process", "explicit"}
        The object stays as long as this process or until `remove`, or only until `remove`.
    replace : bool
        True replaces an object of this name. Processes that have read that one keep it.

    Raises
    ------
    ValueError
        If the name is empty or too long, or there is an object of this name.
    OutOfMemory
        If all objects together would exceed half of the host's memory, or ``BACKHAUL_STORE_BYTES``.
    ConfigError
        If the folder of the store belongs to another user.
    """
    if lifetime not in ("process", "explicit"):
        raise ValueError(f"lifetime must be 'process' or 'explicit', got {lifetime!r}")
    entry = _entry(name)
    parts, nbytes = _layout(entry, obj)
    store = _store()
    with store.locked():
        there = {each.name: each for each in store.objects()}
        if name in there and not replace:
            raise ValueError(f"{name!r} is stored already: replace=True replaces it")
        others = sum(each.nbytes for each in there.values() if each.name != name)
        if others + nbytes > store.bytes_max:
            raise OutOfMemory(
                f"no room for {name!r} of {nbytes} bytes: {others} of {store.bytes_max} bytes are "
                f"stored; remove objects, or set {_BYTES_VARIABLE}"
            )
        store.write(entry, parts, is_file=lifetime == "explicit")


def get(name: str) -> Any:
    """Return an object of the store.

    Arrays are read-only and lie in the memory that all processes share. Objects that can be changed
    by their methods (lists, dictionaries, frames) are made anew by each call.

    Parameters
    ----------
    name : str
        The name that was given to `put`.

    Returns
    -------
    object
        The object.

    Raises
    ------
    NotStored
        If there is no object of this name. An object that this process has read before may be
        returned after the end of its owner, until the store changes.
    ObjectError
        If the folder has something else under this name.
    """
    store = _current
    if store is not None and store.is_current():
        try:
            return store.found[name]()
        except KeyError:
            pass
    return _store().read(name)


def remove(name: str) -> None:
    """Remove an object from the store.

    Processes that have read the object keep it. If another process has put it, its memory is free
    when that process next uses the store, or ends.

    Parameters
    ----------
    name : str
        The name that was given to `put`.

    Raises
    ------
    NotStored
        If there is no object of this name.
    """
    entry = _entry(name)
    store = _store()
    with store.locked():
        try:
            os.unlink(store.folder / entry)
        except FileNotFoundError:
            raise NotStored(f"{name!r} is not stored on this host") from None
        store.changed()


def stored() -> list[StoredObject]:
    """List the objects of the store, by name."""
    store = _store()
    with store.locked():
        return store.objects()


class _Store:
    """The store of a user on this host, as one process has it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.lstat()
        if (
            not stat.S_ISDIR(status.st_mode)
            or status.st_uid != os.geteuid()
            or status.st_mode & 0o077
        ):
            raise ConfigError(
                f"the store's folder {str(folder)!r} belongs to user {status.st_uid} with mode "
                f"{stat.filemode(status.st_mode)}, and must be a folder of this user alone: "
                f"remove it, or set {_FOLDER_VARIABLE}"
            )
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        self._lock_file = os.open(folder / ".lock", flags, 0o600)
        counter = os.open(folder / ".counter", flags, 0o600)
        try:
            with _locked_file(self._lock_file):
                if os.fstat(counter).st_size < mmap.PAGESIZE:
                    os.ftruncate(counter, mmap.PAGESIZE)
            self._counter = memoryview(mmap.mmap(counter, mmap.PAGESIZE)).cast("Q")
        finally:
            os.close(counter)
        self.bytes_max = _bytes_max()
        #: Return the objects that cannot be changed, as of `_seen`
        self.found: dict[str, Callable[[], Any]] = {}
        self._seen = -1
        #: Descriptors of the objects that live as long as this process, by their links
        self._own: dict[str, int] = {}

    def is_current(self) -> bool:
        """Tell whether nothing was put or removed since the last read."""
        return self._counter[0] == self._seen

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other threads and processes from changing the folder."""
        with _lock, _locked_file(self._lock_file):
            yield

    def changed(self) -> None:
        """Tell all processes to look again; called with the lock."""
        self._counter[0] += 1
        self._close_removed()

    def objects(self) -> list[StoredObject]:
        """List the objects, and remove those of processes that have ended; called with the lock."""
        found = []
        for entry in sorted(os.listdir(self.folder)):
            if entry.startswith("."):
                continue
            path = self.folder / entry
            try:
                with _opened(path) as descriptor:
                    nbytes = os.fstat(descriptor).st_size
            except (OSError, ObjectError):
                # Its process has ended, or has given the descriptor's number to something else. A
                # file that is no object is not ours.
                if _owner_of(path) is not None:
                    with contextlib.suppress(FileNotFoundError):
                        path.unlink()
                continue
            owner = _owner_of(path)
            found.append(StoredObject(urllib.parse.unquote(entry), nbytes, owner))
        self._close_removed()
        return sorted(found, key=lambda each: each.name)

    def write(self, entry: str, parts: list[Any], *, is_file: bool) -> None:
        """Write an object and give it its name; called with the lock."""
        made = self.folder / f".new-{os.getpid()}-{os.urandom(8).hex()}"
        descriptor = -1
        try:
            if is_file:
                flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
                descriptor = os.open(made, flags, 0o400)
                _write_all(descriptor, parts)
            else:
                descriptor = os.memfd_create(
                    "backhaul-store", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
                )
                _write_all(descriptor, parts)
                fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
                os.symlink(f"/proc/{os.getpid()}/fd/{descriptor}", made)
            os.rename(made, self.folder / entry)
        except BaseException as error:
            with contextlib.suppress(FileNotFoundError):
                made.unlink()
            if descriptor >= 0:
                os.close(descriptor)
            if isinstance(error, OSError):
                raise OutOfMemory(
                    f"no memory for {urllib.parse.unquote(entry)!r}: {error.strerror}"
                ) from error
            raise
        before = self._own.pop(entry, None)
        if before is not None:
            os.close(before)
        if is_file:
            os.close(descriptor)
        else:
            self._own[entry] = descriptor
        self.changed()

    def read(self, name: str) -> Any:
        """Read an object, and keep it if it cannot be changed."""
        entry = _entry(name)
        with _lock:
            # Before the folder is read: what changes meanwhile is seen by the next call.
            seen = self._counter[0]
            if seen != self._seen:
                self.found.clear()
                self._seen = seen
            try:
                with _opened(self.folder / entry) as descriptor:
                    obj = _load(descriptor, name)
            except OSError as error:
                raise NotStored(f"{name!r} is not stored on this host: {error.strerror}") from None
            except ObjectError:
                # A file that was removed while it was opened, or a link to a process that ended
                if _owner_of(self.folder / entry) is None and (self.folder / entry).exists():
                    raise
                raise NotStored(f"{name!r} is not stored on this host any more") from None
            returns = _returning(obj)
            if returns is None:
                return obj
            self.found[name] = returns
            return returns()

    def close_in_child(self) -> None:
        """Close what belongs to the parent of this forked process."""
        for descriptor in (self._lock_file, *self._own.values()):
            with contextlib.suppress(OSError):
                os.close(descriptor)

    def _close_removed(self) -> None:
        """Release the objects of this process that another one has removed or replaced."""
        for entry, descriptor in list(self._own.items()):
            mine = f"/proc/{os.getpid()}/fd/{descriptor}"
            try:
                is_named = os.readlink(self.folder / entry) == mine
            except OSError:
                is_named = False
            if not is_named:
                del self._own[entry]
                os.close(descriptor)


_lock = RLock()
_current: _Store | None = None


def _store() -> _Store:
    global _current
    with _lock:
        folder = Path(os.environ.get(_FOLDER_VARIABLE) or f"/dev/shm/backhaul-store-{os.geteuid()}")
        if _current is None or _current.folder != folder or not folder.exists():
            _current = _Store(folder)
        return _current


def _bytes_max() -> int:
    text = os.environ.get(_BYTES_VARIABLE)
    if not text:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    if not text.isascii() or not text.isdecimal():
        raise ConfigError(f"{_BYTES_VARIABLE} must be a number of bytes, got {text!r}")
    return int(text)


def _entry(name: str) -> str:
    """Return the name of an object's link in the folder."""
    if not isinstance(name, str):
        raise TypeError(f"a name must be text, got {name!r}")
    entry = urllib.parse.quote(name, safe="")
    # A point at the beginning is for files of the store.
    entry = f"%2E{entry[1:]}" if entry.startswith(".") else entry
    if not 0 < len(entry) <= _NAME_MAX:
        raise ValueError(f"a name must have 1 to {_NAME_MAX} bytes, quoted as in URLs: {name!r}")
    return entry


def _layout(entry: str, obj: object) -> tuple[list[Any], int]:
    """Return the parts of an object in the order of its file, and their bytes."""
    buffers: list[pickle.PickleBuffer] = []
    text = pickle.dumps(obj, protocol=5, buffer_callback=buffers.append)
    views = [buffer.raw() for buffer in buffers]
    head_bytes = _HEAD.size + _PLACE.size * len(views)
    end = head_bytes + len(text)
    places: list[bytes] = []
    parts: list[Any] = []
    for view in views:
        start = -(-end // _ALIGNMENT) * _ALIGNMENT
        if start > end:
            parts.append(bytes(start - end))
        parts.append(view)
        places.append(_PLACE.pack(start, view.nbytes))
        end = start + view.nbytes
    head = _HEAD.pack(_MARK, entry.encode(), end, len(text), len(views)) + b"".join(places)
    return [head, text, *parts], end


def _write_all(descriptor: int, parts: list[Any]) -> None:
    left = [memoryview(part).cast("B") for part in parts if memoryview(part).nbytes]
    while left:
        written = os.writev(descriptor, left[:_VECTOR_MAX])
        while written:
            if written < left[0].nbytes:
                left[0] = left[0][written:]
                break
            written -= left.pop(0).nbytes


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    """Open an object that this user may read and no other process can shorten."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        status = os.fstat(descriptor)
        is_ours = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()
        # A memfd has no name of its own.
        if is_ours and status.st_nlink == 0:
            is_ours = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & _SEALS == _SEALS
        head = os.pread(descriptor, _HEAD.size, 0) if is_ours else b""
        # The number of the process and of the descriptor may be those of another object by now.
        entry = path.name.encode().ljust(_NAME_MAX, b"\0")
        if len(head) < _HEAD.size or not head.startswith(_MARK + entry):
            raise ObjectError(f"{str(path)!r} is no object of the store of this user")
        yield descriptor
    finally:
        os.close(descriptor)


def _owner_of(path: Path) -> int | None:
    """Return the process whose memory an object is; None for a file."""
    try:
        found = _LINK.fullmatch(os.readlink(path))
    except OSError:
        return None
    return int(found[1]) if found else None


def _load(descriptor: int, name: str) -> Any:
    nbytes = os.fstat(descriptor).st_size
    flags = mmap.MAP_SHARED | mmap.MAP_POPULATE
    whole = memoryview(mmap.mmap(descriptor, nbytes, flags=flags, prot=mmap.PROT_READ))
    _, _, whole_bytes, text_bytes, count = _HEAD.unpack_from(whole)
    places_end = _HEAD.size + _PLACE.size * count
    if whole_bytes != nbytes or count > _BUFFERS_MAX or places_end + text_bytes > nbytes:
        raise ObjectError(f"the object {name!r} of {nbytes} bytes is damaged")
    places = list(_PLACE.iter_unpack(whole[_HEAD.size : places_end]))
    if any(start + size > nbytes for start, size in places):
        raise ObjectError(f"the object {name!r} of {nbytes} bytes is damaged")
    text = whole[places_end : places_end + text_bytes]
    return pickle.loads(text, buffers=[whole[start : start + size] for start, size in places])


def _returning(obj: object) -> Callable[[], Any] | None:
    """Return a function that returns an object to several callers; None if one may change it."""
    if isinstance(obj, (str, bytes, int, float, complex, bool, type(None))):
        return lambda: obj
    kind = type(obj)
    if kind.__module__ == "numpy" and kind.__name__ == "ndarray":
        array = cast("Any", obj)
        is_fixed = not array.flags.writeable and not array.dtype.hasobject
        # Each caller may set the shape of its own.
        view: Callable[[], Any] = array.view
        return view if is_fixed else None
    if kind.__module__ == "pyarrow.lib" and kind.__name__ in ("Table", "RecordBatch"):
        return lambda: obj
    return None


@contextlib.contextmanager
def _locked_file(descriptor: int) -> Iterator[None]:
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.flock(descriptor, fcntl.LOCK_UN)


def _start_anew_after_fork() -> None:
    global _current, _lock
    _lock = RLock()
    if _current is not None:
        _current.close_in_child()
    _current = None


os.register_at_fork(after_in_child=_start_anew_after_fork)
