"""Tasks that run once in each period, for asyncio."""

from __future__ import annotations

import functools
import inspect
import sys
from typing import TYPE_CHECKING, Any, Callable, Coroutine, Optional, Tuple, TypeVar, Union

from . import _errors, _loops, _native
from ._contexts import ByTasks
from ._guards import AsyncGuard
from ._times import Duration, maybe
from ._views import Outcome, Skipped
from ._work import awaited

if TYPE_CHECKING:
    from typing_extensions import Literal, ParamSpec

    P = ParamSpec("P")

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

    if TYPE_CHECKING:

        # Checkers then tell it from `Skipped`.
        def __bool__(self) -> Literal[True]: ...

    def _leave(self, raised: Optional[BaseException]) -> _native.Operation:
        return self._succeed() if raised is None else self._release()


class Once(ByTasks[_native.Once, Union[Run, Skipped]]):
    """A task that runs once in each period, on one of the callers: a decorator for coroutines, and a context.

    >>> import asyncio, latchwork.aio
    >>> from typing import List
    >>> async def main() -> List[bool]:
    ...     async with latchwork.aio.connect("mem:") as locks:
    ...         @locks.once("report", every="1d")
    ...         async def report() -> str:
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
        self, work: "Callable[P, Coroutine[Any, Any, T]]"
    ) -> "Callable[P, Coroutine[Any, Any, Outcome[T]]]":
        """Decorates a coroutine function. What is no function, and a generator, is refused with ``TypeError``."""
        awaited(work, "once")

        @functools.wraps(work)
        async def task(*args: "P.args", **kwargs: "P.kwargs") -> "Outcome[T]":
            run = await self.begin()
            if isinstance(run, Skipped):
                return Outcome(False, skipped=run)
            try:
                value: Any = work(*args, **kwargs)
                # A plain function has run by now.
                is_awaited: bool = inspect.isawaitable(value)
                value = await run.run(value) if is_awaited else value
            except BaseException as raised:
                await run.__aexit__(type(raised), raised, None)
                raise
            try:
                await run.succeed()
            except _errors.LatchworkError as error:
                return Outcome(True, value, not_closed=error)
            return Outcome(True, value)

        return task

    def __aenter__(self) -> Coroutine[Any, Any, Union[Run, Skipped]]:
        return self._entered(_native.block(sys._getframe(1)))

    async def _entered(self, where: int) -> Union[Run, Skipped]:
        run = await self.begin()
        self._push(where, _loops.task(), run)
        return run
