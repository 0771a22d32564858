"""Amounts of memory of a GPU, as users of dask-cuda write them, and how much one has."""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass

from dask.utils import parse_bytes

from backhaul.errors import ConfigError, MachineError

__all__ = ["DeviceBytes", "device_bytes", "device_memory_bytes"]

_ALLOWED = "a size like '5GB', bytes, a fraction of the GPU's memory like 0.8, or None"

# cuda.h: of these functions the newer kind, which counts in 64 bits
_DRIVER = "libcuda.so.1"
_INTEGRATED = 18


@dataclass(frozen=True, slots=True)
class DeviceBytes:
    """An amount of memory of a GPU."""

    #: Whose value it is, for messages
    option: str
    #: Bytes, or a fraction of what the GPU has, in (0, 1]
    amount: int | float

    @property
    def is_fraction(self) -> bool:
        """Return whether its bytes are known only where the GPU is."""
        return isinstance(self.amount, float)

    def within(self, total_bytes: int, *, unit_bytes: int = 1) -> int:
        """Return its bytes for the memory of a GPU, rounded down to a multiple of a unit."""
        wanted = int(total_bytes * self.amount) if self.is_fraction else int(self.amount)
        return wanted // unit_bytes * unit_bytes

    def __str__(self) -> str:
        return f"{self.option}={self.amount!r}"


def device_bytes(option: str, value: object) -> DeviceBytes | None:
    """Read an amount of memory of a GPU.

    Parameters
    ----------
    option : str
        Whose value it is.
    value : int, float, str or None
        Bytes; a fraction, which has a point in it and is at most 1; or a size with its unit.

    Returns
    -------
    DeviceBytes or None
        None for nothing, which zero of anything is too.

    Raises
    ------
    ConfigError
        If the value is none of these. Names option and value.

    Examples
    --------
    >>> device_bytes("rmm_pool_size", "5GB").amount
    5000000000
    >>> device_bytes("rmm_pool_size", "0.5").amount
    0.5
    >>> device_bytes("rmm_pool_size", 1).amount, device_bytes("rmm_pool_size", 1.0).amount
    (1, 1.0)
    """
    if value is None:
        return None
    refusal = ConfigError(f"{option} must be {_ALLOWED}, got {value!r}")
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise refusal
    amount: int | float
    if isinstance(value, str):
        try:
            # A command line has texts alone.
            amount = float(value) if "." in value and _is_number(value) else int(parse_bytes(value))
        except ValueError as error:
            raise refusal from error
    else:
        amount = value
    if amount == 0:
        return None
    if not math.isfinite(amount) or amount < 0:
        raise refusal
    if isinstance(amount, float) and amount > 1:
        if not amount.is_integer():
            raise refusal
        amount = int(amount)
    return DeviceBytes(option, amount)


def device_memory_bytes() -> int | None:
    """Ask the driver for the bytes of memory of the first GPU that this process may see.

    Returns None for a GPU that has none of its own, but shares the host's.

    Raises
    ------
    MachineError
        If there is no driver, or no GPU.
    """
    try:
        driver = ctypes.CDLL(_DRIVER)
    except OSError as error:
        raise MachineError(f"no memory of a GPU can be told: {error}") from error
    device, integrated, total = ctypes.c_int(), ctypes.c_int(), ctypes.c_size_t()
    for call, *arguments in (
        ("cuInit", 0),
        ("cuDeviceGet", ctypes.byref(device), 0),
        ("cuDeviceGetAttribute", ctypes.byref(integrated), _INTEGRATED, device),
        ("cuDeviceTotalMem_v2", ctypes.byref(total), device),
    ):
        status = getattr(driver, str(call))(*arguments)
        if status:
            raise MachineError(f"no memory of a GPU can be told: {call} failed with {status}")
    return None if integrated.value else total.value


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
