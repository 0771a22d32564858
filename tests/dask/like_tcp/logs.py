"""Handler that keeps warnings and errors of a process; preloaded by the workers of the suite."""

from __future__ import annotations

import logging
import threading

__all__ = ["install", "taken"]

#: Loggers that pass nothing on to the root
_LOGGERS = ("", "distributed", "distributed.client", "tornado", "tornado.application")


class _Keeping(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.records: dict[int, logging.LogRecord] = {}
        self.own_lock = threading.Lock()

    def emit(self, record: logging.LogRecord) -> None:
        with self.own_lock:
            # By identity, as a record comes once for each logger above it.
            self.records[id(record)] = record

    def take(self) -> list[tuple[str, int, str]]:
        with self.own_lock:
            records, self.records = list(self.records.values()), {}
        return [(each.name, each.levelno, _text(each)) for each in records]


_keeping = _Keeping()


def _text(record: logging.LogRecord) -> str:
    text = record.getMessage()
    if record.exc_info and record.exc_info[1] is not None:
        text += f" [{type(record.exc_info[1]).__name__}: {record.exc_info[1]}]"
    return text


def install() -> None:
    """Has this process keep warnings and errors from now on."""
    logging.captureWarnings(True)
    for name in _LOGGERS:
        logging.getLogger(name).addHandler(_keeping)


def taken() -> list[tuple[str, int, str]]:
    """Returns logger, level and text of all records since the last call."""
    return _keeping.take()


def dask_setup(_worker: object) -> None:
    """Installs the handler in a worker; called by Dask as this module is a preload."""
    install()
