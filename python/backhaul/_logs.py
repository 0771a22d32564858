"""The logger ``backhaul``: the native module writes to it, and it has Dask's format.

Where a program configures no logging, Python writes warnings without time, level and name. Dask
gives its own loggers a handler for that case. `FallbackHandler` is the same for ``backhaul`` and
the loggers under it. The handler leaves a record alone where a logger of the program handles the
record, so that no line comes twice.
"""

from __future__ import annotations

import logging
import sys

__all__ = ["FallbackHandler", "add_fallback_handler", "log"]

_logger = logging.getLogger("backhaul")

log = _logger.log

#: Dask's format, where its configuration is not loaded
_FORMAT = "%(asctime)s - %(name)s - %(levelname)s - %(message)s"
_FORMAT_KEY = "distributed.admin.log-format"


class FallbackHandler(logging.Handler):
    """Writes records to ``sys.stderr`` where no other handler gets them."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Refuse a record that a handler of the program gets."""
        return not self._has_others(record) and bool(super().filter(record))

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record in Dask's format, to the standard error of this moment."""
        try:
            sys.stderr.write(logging.Formatter(_dasks_format()).format(record) + "\n")
            sys.stderr.flush()
        except Exception:
            self.handleError(record)

    def _has_others(self, record: logging.LogRecord) -> bool:
        """Tell whether a logger that the record comes by has another handler."""
        logger: logging.Logger | None = logging.getLogger(record.name)
        while logger is not None:
            if any(handler is not self for handler in logger.handlers):
                return True
            logger = logger.parent if logger.propagate else None
        return False


def add_fallback_handler() -> None:
    """Give the logger ``backhaul`` its handler; a second call has no effect."""
    if not any(isinstance(handler, FallbackHandler) for handler in _logger.handlers):
        _logger.addHandler(FallbackHandler())


def _dasks_format() -> str:
    # Not imported here: a program without Dask has the same format.
    dask_config = sys.modules.get("dask.config")
    if dask_config is None:
        return _FORMAT
    return str(dask_config.get(_FORMAT_KEY, default=_FORMAT))
