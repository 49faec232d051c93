"""Tasks that run once in each period, for asyncio."""

from __future__ import annotations

import functools
from typing import Any, Callable, Coroutine, Optional, Tuple, TypeVar, Union

from . import _errors, _loops, _native
from ._contexts import ByTasks
from ._guards import AsyncGuard
from ._once import Outcome, Skipped
from ._times import Duration, maybe

T = TypeVar("T")


class Run(AsyncGuard):
    """A task that has begun: a guard. Success closes the period; an exception opens the task for others."""

    __slots__ = ()

    @property
    def period(self) -> Optional[Tuple[float, float]]:
        """Begin and end of the period, in seconds since 1970."""
        return self._period

    def succeed(self) -> Coroutine[Any, Any, None]:
        """Closes the period, so that no host runs the task again before it ends."""
        return self._succeed().awaitable()

    def fail(self) -> Coroutine[Any, Any, None]:
        """Opens the task for others, as after a failure."""
        return self.release()

    def _leave(self, raised: Optional[BaseException]) -> _native.Operation:
        return self._succeed() if raised is None else self._release()


class Once(ByTasks[_native.Once, Union[Run, Skipped]]):
    """A task that runs once in each period, on one of the callers: a decorator for coroutines, and a context.

    >>> import asyncio, latchwork.aio
    >>> async def main():
    ...     async with await latchwork.aio.connect("mem:") as locks:
    ...         @locks.once("report", every="1d")
    ...         async def report():
    ...             return "sent"
    ...         return [bool(await report()), bool(await report())]
    >>> asyncio.run(main())
    [True, False]
    """

    __slots__ = ()

    _module = "aio."

    async def begin(self, timeout: Optional[Duration] = None) -> Union[Run, Skipped]:
        """Begins the task unless it was done in this period. If it is running elsewhere, waits up to ``timeout``."""
        begun = await self._native.begin(maybe(timeout, "timeout")).giving(Run)
        return begun if isinstance(begun, Run) else Skipped(**begun)

    async def reset(self) -> str:
        """Opens the task again in this period: ``"opened"``, ``"not_closed"`` or ``"running"``."""
        said: str = (await self._native.reset())[0]
        return said

    def __call__(
        self, work: Callable[..., Coroutine[Any, Any, T]]
    ) -> Callable[..., Coroutine[Any, Any, Outcome[T]]]:
        @functools.wraps(work)
        async def task(*args: Any, **kwargs: Any) -> Outcome[T]:
            run = await self.begin()
            if isinstance(run, Skipped):
                return Outcome(False, skipped=run)
            try:
                value = await run.run(work(*args, **kwargs))
            except BaseException as raised:
                await run.__aexit__(type(raised), raised, None)
                raise
            try:
                await run.succeed()
            except _errors.LatchworkError as error:
                return Outcome(True, value, not_closed=error)
            return Outcome(True, value)

        return task

    async def __aenter__(self) -> Union[Run, Skipped]:
        run = await self.begin()
        self._push(_loops.task(), run)
        return run
