"""Durations: seconds as a number, or a timedelta."""

from __future__ import annotations

from datetime import timedelta
from typing import Optional, Union

from . import _errors

Duration = Union[float, int, timedelta]


def seconds(value: Duration, field: str) -> float:
    """Returns the duration in seconds, or raises ``Invalid`` with the field's name."""
    number = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(number, bool) or not isinstance(number, (int, float)):
        hint = ""
        if field == "timeout" and isinstance(value, bool):
            hint = "; to wait without a limit, leave it out" if value else "; to try once, call try_acquire()"
        if isinstance(value, str):
            hint = "; write 30, 0.5 or timedelta(minutes=5)"
        raise _errors.invalid(field, f"{value!r} is neither a number of seconds nor a timedelta{hint}")
    # Neither does a NaN pass, nor an int that no float can hold.
    if not 0 <= number <= 1e9:
        hint = "; to wait without a limit, leave it out" if field == "timeout" and number < 0 else ""
        raise _errors.invalid(field, f"{value!r} is not a number of seconds from 0 to 1e9{hint}")
    return float(number)


def maybe(value: Optional[Duration], field: str) -> Optional[float]:
    return None if value is None else seconds(value, field)
