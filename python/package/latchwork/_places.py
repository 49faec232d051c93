"""Where the program is: the frames outside of this package, for warnings."""

from __future__ import annotations

import os
import sys
from types import FrameType
from typing import Optional, Tuple

_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep


def _program() -> Tuple[Optional[FrameType], int]:
    """The program's frame, and how far it is above the caller of who asks."""
    frame: Optional[FrameType] = sys._getframe(2)
    number = 1
    while frame is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame, number = frame.f_back, number + 1
    return frame, number


def place() -> Optional[str]:
    """The line of the program that is acquiring a lock."""
    frame, _ = _program()
    return None if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"


def level() -> int:
    """The ``stacklevel`` of the program's line, for a warning of the caller."""
    return _program()[1]
