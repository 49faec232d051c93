"""Durations: seconds as a number, or a timedelta."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Optional, Union

from . import _errors

Duration = Union[float, int, timedelta]


def seconds(value: Duration, field: str) -> float:
    """Returns the duration in seconds, or raises ``Invalid`` with the field's name."""
    number = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(number, bool) or not isinstance(number, (int, float)):
        raise _errors.invalid(field, f"{value!r} is neither a number of seconds nor a timedelta")
    if not math.isfinite(number) or number < 0 or number > 1e9:
        raise _errors.invalid(field, f"{value!r} is not a number of seconds from 0 to 1e9")
    return float(number)


def maybe(value: Optional[Duration], field: str) -> Optional[float]:
    return None if value is None else seconds(value, field)
