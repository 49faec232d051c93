"""Locks of the default store in one line, for tasks."""

from __future__ import annotations

import sys
from typing import Any, Callable, Coroutine, Dict, NoReturn, Optional

from . import _default, _native
from ._aio_locks import Lock, Locks, connect
from ._elsewhere import of_acquire, of_lock
from ._factory import text
from ._guards import AsyncGuard
from ._loops import Acquiring, task
from ._synchronized import W, refused
from ._synchronized import synchronized as decorated
from ._times import Duration, maybe


async def locks() -> Locks:
    """The default store's locks."""
    where = _default.key()
    known = _default._known.get(where)
    if known is None:
        known = _default.kept(where, (await connect(where[1]))._native)
    return Locks(known)


class DefaultLock(Lock):
    """A lock of the default store, which is connected at the first use."""

    __slots__ = ("_options",)

    def __init__(self, name: str, options: Dict[str, Any]) -> None:
        self._name = text(name, "name")
        self._shown = ""
        self._options = options

    async def _lock(self) -> Lock:
        return (await locks()).lock(self._name, **self._options)

    def acquire(self, timeout: Optional[Duration] = None, **unknown: NoReturn) -> Acquiring[AsyncGuard]:
        """Connects if this process has not, and waits for the lock, as :meth:`Lock.acquire`."""
        if unknown:
            raise of_acquire(unknown)
        limit = maybe(timeout, "timeout")

        async def acquired() -> AsyncGuard:
            return await (await self._lock()).acquire(limit)

        return Acquiring(acquired())

    async def try_acquire(self) -> Optional[AsyncGuard]:
        """Connects if this process has not, and acquires the lock if it is free."""
        return await (await self._lock()).try_acquire()

    def __aenter__(self) -> Coroutine[Any, Any, AsyncGuard]:
        return self._entered(_native.block(sys._getframe(1)))

    async def _entered(self, where: int) -> AsyncGuard:
        guard = await self.acquire()
        self._push(where, task(), guard)
        return guard


def lock(
    name: str,
    *,
    ttl: Optional[Duration] = None,
    fair: bool = False,
    holder: Optional[str] = None,
    max_hold: Optional[Duration] = None,
    lock_delay: Optional[Duration] = None,
    **unknown: NoReturn,
) -> Lock:
    """Returns a mutex of the default store, as :func:`latchwork.lock`: ``async with latchwork.aio.lock("stock/42"):``."""
    if unknown:
        raise of_lock(unknown, "lock")
    options = {"ttl": ttl, "fair": fair, "holder": holder, "max_hold": max_hold, "lock_delay": lock_delay}
    return DefaultLock(name, options)


def synchronized(
    name: str,
    *,
    timeout: Optional[Duration] = None,
    ttl: Optional[Duration] = None,
    fair: bool = False,
    holder: Optional[str] = None,
    max_hold: Optional[Duration] = None,
    lock_delay: Optional[Duration] = None,
) -> Callable[[W], W]:
    """Decorates a coroutine function, so that each call runs under a lock of the default store, as
    :func:`latchwork.synchronized`."""
    limit = maybe(timeout, "timeout")

    async def run(key: str, work: Callable[[AsyncGuard], Any]) -> Any:
        made = lock(key, ttl=ttl, fair=fair, holder=holder, max_hold=max_hold, lock_delay=lock_delay)
        async with made.acquire(limit) as guard:
            return await guard.run(work(guard))

    return decorated(name, refused, run, only_async=True)
