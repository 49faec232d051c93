"""Guards: locks that are held."""

from __future__ import annotations

import sys
import warnings
from types import TracebackType
from typing import TYPE_CHECKING, Any, Coroutine, Generator, Optional, Tuple, Type, TypeVar

from . import _errors, _loops, _native
from ._places import level
from ._times import Duration, maybe

T = TypeVar("T")
_G = TypeVar("_G", bound="Guard")
_A = TypeVar("_A", bound="AsyncGuard")


class Loss:
    """Whether and why a lock was lost: an event for threads, and an awaitable for tasks.

    ``guard.lost.wait(timeout)`` blocks a thread, ``await guard.lost`` a task. Both end with the reason when the lock
    is lost, and with ``None`` when it is released first.
    """

    __slots__ = ("_fate",)

    def __init__(self, fate: _native.Fate) -> None:
        self._fate = fate

    def is_set(self) -> bool:
        """Returns whether the lock is lost."""
        return self._fate.loss is not None

    __bool__ = is_set

    @property
    def reason(self) -> Optional[str]:
        """``"expired"``, ``"taken"``, ``"session_ended"``, ``"max_hold"`` or ``"forked"``; ``None`` while it is held."""
        loss = self._fate.loss
        return None if loss is None else loss[0]

    def wait(self, timeout: Optional[Duration] = None) -> Optional[str]:
        """Blocks until the lock is lost, and returns the reason. Returns ``None`` if it was released first, or when
        ``timeout`` has ended."""
        said: Optional[Tuple[str, str]] = self._fate.lost().wait(maybe(timeout, "timeout"))
        return None if said is None else said[0]

    def __await__(self) -> Generator[Any, None, Optional[str]]:
        said = yield from self._fate.lost().__await__()
        return None if said is None else said[0]

    def __repr__(self) -> str:
        return f"<Loss {self.reason or 'no'}>"


class _Held(_native.Hold):
    """What guards of threads and of tasks have in common. It is collected as it is released, with a warning."""

    __slots__ = ("__weakref__",)

    @property
    def lost(self) -> Loss:
        """Whether the lock is lost: an event, and an awaitable."""
        return Loss(self._fate())

    def _leave(self, raised: Optional[BaseException]) -> _native.Operation:
        """Ends the hold when its block ends."""
        return self._release()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.key!r} token={self.token} {self.state}>"

    def __reduce__(self) -> Any:
        raise TypeError("a guard belongs to its process and cannot be pickled: pass guard.token instead")


def note(body: BaseException, error: BaseException) -> None:
    """The body's own exception is raised; that the release failed is added to it."""
    if isinstance(body, GeneratorExit) or isinstance(error, _errors.Lost) and isinstance(body, _errors.Lost):
        # Nobody sees the first, and the second says it already.
        return
    text = f"and the release of the lock failed: {error}"
    if hasattr(body, "add_note"):
        body.add_note(text)
    else:
        warnings.warn(text, RuntimeWarning, stacklevel=level())


class Guard(_Held):
    """A lock that is held: until it is released, collected or lost.

    It is renewed in the background, also while no thread of Python runs. It belongs to the owner of the object, not
    to a thread.

    >>> import latchwork
    >>> with latchwork.connect("mem:") as locks:
    ...     with locks.lock("stock/42").acquire(timeout=5) as guard:
    ...         guard.ensure_held() == guard.token
    True
    """

    __slots__ = ()

    def release(self) -> None:
        """Releases the lock. If it returns, the lock was held until now.

        :raises Lost: The lock was lost before: what was done since may have overlapped with another holder's work.
        :raises Unreachable: The store did not answer. The lock was held until now, and Latchwork repeats the release
            in the background until the ttl is over.
        """
        self._release().wait()

    def upgrade(self, timeout: Optional[Duration] = None) -> int:
        """Makes a read hold a write hold, and returns the new, larger token. Waits until the other readers have
        released; without ``timeout``, without a limit.

        Nobody writes in between: the read hold lasts until the write hold is granted. No new reader is admitted
        while it waits.

        >>> import latchwork
        >>> with latchwork.connect("mem:") as locks:
        ...     page = locks.rwlock("page/7")
        ...     with page.read as guard:
        ...         token = guard.token             # what was read shows that something is to be written
        ...         guard.upgrade(timeout=5) > token and guard.token > token
        True

        :raises TimedOut: Other readers still held the lock. This guard holds it for reading, as after the next two.
        :raises UpgradeConflict: Another reader is upgrading, and waits for this guard. Release it, then acquire the
            lock for writing.
        :raises Unsupported: The store cannot do it: Redlock, or plain mode of Redis.
        :raises Lost: The lock was lost meanwhile.
        """
        token: int = self._upgrade(maybe(timeout, "timeout")).wait()
        return token

    def downgrade(self) -> int:
        """Makes a write hold a read hold, and returns the new, larger token. Does not wait for others, and nobody
        writes in between.

        :raises Lost: The lock was lost before.
        """
        token: int = self._downgrade().wait()
        return token

    def __enter__(self: _G) -> _G:
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        raised: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        if self._is_released:
            return
        try:
            self._leave(raised).wait()
        except _errors.LatchworkError as error:
            if raised is None:
                raise
            note(raised, error)

    if not TYPE_CHECKING:

        def __aenter__(self) -> Any:
            raise TypeError(
                "this guard was acquired by a call that blocks: use `with`, or `async with lock` without `acquire()`, or "
                "connect by latchwork.aio"
            )

        __aexit__ = __aenter__


class AsyncGuard(_Held):
    """A lock that is held, for tasks of asyncio.

    >>> import asyncio, latchwork.aio
    >>> async def main() -> bool:
    ...     async with latchwork.aio.connect("mem:") as locks:
    ...         async with locks.lock("stock/42") as guard:
    ...             return guard.ensure_held() == guard.token
    >>> asyncio.run(main())
    True
    """

    __slots__ = ()

    def release(self) -> Coroutine[Any, Any, None]:
        """Releases the lock, as :meth:`Guard.release`. If the task is cancelled meanwhile, the release continues in
        the background."""
        return self._release().awaitable()

    async def upgrade(self, timeout: Optional[Duration] = None) -> int:
        """Makes a read hold a write hold, as :meth:`Guard.upgrade`. If the task is cancelled meanwhile, the guard keeps
        its read hold."""
        token: int = await self._upgrade(maybe(timeout, "timeout"))
        return token

    async def downgrade(self) -> int:
        """Makes a write hold a read hold, as :meth:`Guard.downgrade`."""
        token: int = await self._downgrade()
        return token

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine for as long as the lock is held.

        :raises Lost: The lock was lost first: ``work`` was cancelled.
        """
        return await _loops.run_while(work, self)

    async def __aenter__(self: _A) -> _A:
        return self

    def __aexit__(
        self,
        kind: Optional[Type[BaseException]],
        raised: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> Coroutine[Any, Any, None]:
        if _native.is_closed(kind, sys._getframe(1)):
            self._forget()
            return _loops.nothing()
        return self._leave(raised).leaving(raised)
