"""Tasks that run once in each period, for threads."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Callable, Optional, Tuple, TypeVar, Union

from . import _errors, _native
from ._contexts import ByThreads
from ._guards import Guard
from ._times import Duration, maybe

if TYPE_CHECKING:
    # Checkers know it without the package.
    from typing_extensions import Literal, ParamSpec

    from ._views import Outcome, Skipped

    P = ParamSpec("P")

T = TypeVar("T")


class Run(Guard):
    """A task that has begun: a guard. Success closes the period; an exception opens the task for others."""

    __slots__ = ()

    @property
    def period(self) -> Optional[Tuple[float, float]]:
        """Begin and end of the period, in seconds since 1970."""
        return self._period

    def succeed(self) -> None:
        """Closes the period, so that no host runs the task again before it ends."""
        self._succeed().wait()

    def fail(self) -> None:
        """Opens the task for others, as after a failure."""
        self.release()

    if TYPE_CHECKING:

        # Checkers then tell it from `Skipped`.
        def __bool__(self) -> Literal[True]: ...

    def _leave(self, raised: Optional[BaseException]) -> _native.Operation:
        return self._succeed() if raised is None else self._release()


class Once(ByThreads[_native.Once, "Union[Run, Skipped]"]):
    """A task that runs once in each period, on one of the callers.

    As a decorator:

    >>> import latchwork
    >>> locks = latchwork.connect("mem:")
    >>> @locks.once("report", every="1d", tz="Europe/Berlin")
    ... def report(day: str) -> str:
    ...     return f"report of {day}"
    >>> report("Monday").value
    'report of Monday'
    >>> report("Monday").ran
    False

    As a context, whose value is false if there is nothing to do:

    >>> with locks.once("mail", every="1h") as run:
    ...     if run:
    ...         run.token > 0
    True
    >>> locks.close()
    """

    __slots__ = ()

    def begin(self, timeout: Optional[Duration] = None) -> Union[Run, Skipped]:
        """Begins the task unless it was done in this period. If it is running elsewhere, waits up to ``timeout``.

        Without ``timeout`` it returns :class:`Skipped` at once if the task is running elsewhere.
        """
        begun: Any = self._native.begin(maybe(timeout, "timeout")).giving(Run).wait()
        if isinstance(begun, Run):
            return begun
        from ._views import Skipped

        return Skipped(**begun)

    def reset(self) -> str:
        """Opens the task again in this period: ``"opened"``, ``"not_closed"`` or ``"running"``."""
        said: str = self._native.reset().wait()[0]
        return said

    def __call__(self, work: "Callable[P, T]") -> "Callable[P, Outcome[T]]":
        """Decorates a function. What is no work (a coroutine function, a generator, no function at all) is refused with
        ``TypeError``, and opens the task for others."""
        from ._work import blocking, finished

        blocking(work, "once")

        @functools.wraps(work)
        def task(*args: "P.args", **kwargs: "P.kwargs") -> "Outcome[T]":
            from ._views import Outcome

            run = self.begin()
            if not isinstance(run, Run):
                return Outcome(False, skipped=run)
            try:
                value = work(*args, **kwargs)
                finished(value, work, "once")
            except BaseException as raised:
                run.__exit__(type(raised), raised, None)
                raise
            try:
                run.succeed()
            except _errors.LatchworkError as error:
                return Outcome(True, value, not_closed=error)
            return Outcome(True, value)

        return task

    def _acquire(self) -> Union[Run, Skipped]:
        return self.begin()
