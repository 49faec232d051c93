"""What is run under a lock: refused before it begins if nothing would run."""

from __future__ import annotations

import functools
import inspect
from typing import Any


def _function(work: Any) -> Any:
    """What runs when the work is called."""
    while isinstance(work, functools.partial):
        work = work.func
    if inspect.isroutine(work) or inspect.isclass(work):
        return work
    return getattr(type(work), "__call__", work)


def _checked(work: Any, what: str) -> Any:
    if not callable(work):
        raise TypeError(f"{what}: {work!r} is not callable; pass a function")
    function = _function(work)
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(f"{what}: {work!r} does not run when it is called: it makes a generator")
    return function


def blocking(work: Any, what: str) -> None:
    """Refuses a function whose call runs nothing."""
    if inspect.iscoroutinefunction(_checked(work, what)):
        raise TypeError(f"{what}: {work!r} does not run when it is called; for coroutines, connect by latchwork.aio")


def awaited(work: Any, what: str) -> None:
    """Refuses what is no function, or whose result cannot be awaited."""
    _checked(work, what)


def finished(value: Any, work: Any, what: str) -> None:
    """Refuses the result of a blocking function that has not run yet."""
    if not inspect.isawaitable(value):
        return
    if inspect.iscoroutine(value):
        value.close()
    raise TypeError(
        f"{what}: {work!r} has returned {type(value).__name__}, which nobody awaits; for coroutines, connect by latchwork.aio"
    )
