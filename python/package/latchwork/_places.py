"""Where the program is: the frames outside of this package, for warnings and for blocks."""

from __future__ import annotations

import contextlib
import os
import sys
from types import FrameType
from typing import Optional, Tuple, Type

#: As the module `inspect` has it, whose import takes long.
_CO_ASYNC_GENERATOR = 0x200
_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep
#: `ExitStack` enters and leaves from here.
_STACKS = contextlib.ExitStack.enter_context.__code__.co_filename


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


def block(frame: FrameType) -> int:
    """The block that is entered or left in this frame: its number is that of the frame, or of the ``ExitStack``."""
    if frame.f_code.co_filename == _STACKS:
        stack = frame.f_locals.get("self")
        if stack is not None:
            return id(stack)
    return id(frame)


def is_closed(kind: Optional[Type[BaseException]], frame: FrameType) -> bool:
    """Whether a block ends because its coroutine is closed, as those of an event loop are that has ended: then it must
    not await. An asynchronous generator that is closed may."""
    return kind is GeneratorExit and not frame.f_code.co_flags & _CO_ASYNC_GENERATOR
