"""Locks for tasks: what ``await latchwork.aio.connect()`` gives."""

from __future__ import annotations

import os
import sys
from types import TracebackType
from typing import TYPE_CHECKING, Any, Callable, Coroutine, List, NoReturn, Optional, Type, TypeVar, Union

from . import _address, _configured, _connecting, _loops, _native
from ._aio_elections import Election
from ._aio_once import Once
from ._contexts import ByTasks
from ._elsewhere import of_acquire
from ._errors import Lost
from ._factory import Factory, Sides, _count, maybe_text
from ._guards import AsyncGuard
from ._loops import Acquiring
from ._synchronized import W, refused, synchronized
from ._times import Duration, maybe
from ._views import ForceReleased, LockView, LockViews, Prepared, Report, Resized
from ._work import blocking

if TYPE_CHECKING:
    from . import _Source

_L = TypeVar("_L", bound="Locks")
C = TypeVar("C", bound=Callable[[Lost], Any])


class Lock(ByTasks[_native.Lock, AsyncGuard]):
    """A lock that is not held yet: cheap, does no I/O, may be kept and shared between tasks. It is not reentrant."""

    __slots__ = ()

    _module = "aio."

    def acquire(self, timeout: Optional[Duration] = None, **unknown: NoReturn) -> Acquiring[AsyncGuard]:
        """Waits for the lock: ``guard = await lock.acquire()``, or ``async with lock.acquire(timeout=5) as guard``.

        :raises TimedOut: The lock was not free within ``timeout``; the message names the holder.
        :raises Unreachable: The store did not answer.
        """
        if unknown:
            raise of_acquire(unknown)
        return Acquiring(self._native.acquire(maybe(timeout, "timeout")).giving(AsyncGuard))

    def try_acquire(self) -> Coroutine[Any, Any, Optional[AsyncGuard]]:
        """Acquires the lock if it is free, and returns ``None`` if it is not."""
        return self._native.try_acquire().giving(AsyncGuard)


class ReentrantLock(ByTasks[_native.Lock, AsyncGuard]):
    """A mutex that its owner may acquire again. The owner is the task, or the ``owner`` that you name."""

    __slots__ = ()

    _module = "aio."

    def acquire(
        self, timeout: Optional[Duration] = None, owner: Optional[str] = None, **unknown: NoReturn
    ) -> Acquiring[AsyncGuard]:
        """Waits for the lock, unless the owner has it already."""
        if unknown:
            raise of_acquire(unknown)
        return Acquiring(self._acquire(maybe(timeout, "timeout"), maybe_text(owner, "owner")))

    async def _acquire(self, timeout: Optional[float], owner: Optional[str]) -> AsyncGuard:
        owner = owner if owner is not None else _loops.task_owner()
        guard: AsyncGuard = await self._native.acquire(timeout, owner).giving(AsyncGuard)
        return guard

    async def try_acquire(self, owner: Optional[str] = None) -> Optional[AsyncGuard]:
        """Acquires the lock if it is free or the owner has it, and returns ``None`` otherwise."""
        owner = maybe_text(owner, "owner") if owner is not None else _loops.task_owner()
        guard: Optional[AsyncGuard] = await self._native.try_acquire(owner).giving(AsyncGuard)
        return guard


class RWLock(Sides[Lock]):
    """A read-write lock: many readers at a time, or one writer. Both sides are locks of their own."""

    __slots__ = ()


class Locks(Factory[Lock, RWLock, ReentrantLock, Election, Once]):
    """A connection to a store, which hands out locks. Share one between all tasks. The parameters are those of
    :class:`latchwork.Locks`."""

    __slots__ = ()

    _lock, _rwlock, _reentrant, _election, _once = Lock, RWLock, ReentrantLock, Election, Once

    def on_lost(self, callback: C) -> C:
        """Calls ``callback(lost)`` at each loss of a lock of this connection, on the event loop that runs now. Otherwise as
        :meth:`latchwork.Locks.on_lost`."""
        blocking(callback, "on_lost")
        self._lost.called.append(_loops.soon(callback))
        return callback

    def synchronized(
        self,
        name: str,
        *,
        timeout: Optional[Duration] = None,
        ttl: Optional[Duration] = None,
        fair: bool = False,
        holder: Optional[str] = None,
        max_hold: Optional[Duration] = None,
        lock_delay: Optional[Duration] = None,
    ) -> Callable[[W], W]:
        """Decorates a coroutine function, as :meth:`latchwork.Locks.synchronized`: each call runs under a lock, and is
        cancelled if the lock is lost."""
        limit = maybe(timeout, "timeout")

        async def run_async(key: str, work: Callable[[AsyncGuard], Any]) -> Any:
            lock = self.lock(key, ttl=ttl, fair=fair, holder=holder, max_hold=max_hold, lock_delay=lock_delay)
            async with lock.acquire(limit) as guard:
                return await guard.run(work(guard))

        return synchronized(name, refused, run_async, only_async=True)

    async def ls(self, prefix: str = "") -> List[LockView]:
        """Lists the keys that are held, waited for or closed. Changes nothing."""
        prefix, namespace = self._own(prefix, "prefix"), self._namespace
        return LockViews(LockView.of(view, namespace) for view in await self._native.list(prefix))

    async def show(self, name: Union[str, LockView]) -> LockView:
        """Returns the holders and the waiters of a key, as :meth:`latchwork.Locks.show`. Changes nothing."""
        return LockView.of((await self._native.inspect(self._own(name)))[0], self._namespace)

    async def force_release(self, name: Union[str, LockView]) -> ForceReleased:
        """Releases a key by force, as :meth:`latchwork.Locks.force_release`."""
        return ForceReleased.of(await self._native.force_release(self._own(name)))

    async def resize(self, name: Union[str, LockView], of: int) -> Resized:
        """Changes the number of permits of a semaphore, as :meth:`latchwork.Locks.resize`."""
        return Resized(*await self._native.resize(self._own(name), _count(of, "of")))

    async def close(self) -> None:
        """Refuses the waiters, then releases every lock. Guards that are still alive are lost."""
        await self._native.close()

    if not TYPE_CHECKING:

        def __enter__(self) -> Any:
            raise TypeError("this connection is for tasks: write `async with`, or connect by latchwork.connect()")

        __exit__ = __enter__

    async def __aenter__(self: _L) -> _L:
        return self

    def __aexit__(
        self, kind: Optional[Type[BaseException]], raised: Optional[BaseException], trace: Optional[TracebackType]
    ) -> Coroutine[Any, Any, None]:
        # What is closed with its loop cannot wait; the locks are released as their guards are collected.
        return _loops.nothing() if _native.is_closed(kind, sys._getframe(1)) else self.close()


class Connecting(_loops.Awaited[Locks]):
    """A connect under way: await it for the connection, or use it in ``async with``, which closes the connection."""

    __slots__ = ()

    def __aexit__(
        self, kind: Optional[Type[BaseException]], raised: Optional[BaseException], trace: Optional[TracebackType]
    ) -> Coroutine[Any, Any, None]:
        locks = self._take()
        return _loops.nothing() if locks is None or _native.is_closed(kind, sys._getframe(1)) else locks.close()


def connect(
    url: "_Source" = None,
    *,
    store_file: "Union[None, str, os.PathLike[str]]" = None,
    store_command: Optional[str] = None,
    namespace: Optional[str] = None,
    ttl: Optional[Duration] = None,
    holder: Optional[str] = None,
    max_hold: Optional[Duration] = None,
    lock_delay: Optional[Duration] = None,
    op_timeout: Optional[Duration] = None,
    renew_every: Optional[Duration] = None,
) -> Connecting:
    """Connects to a store: ``locks = await connect(url)``, or ``async with connect(url) as locks``, which closes the
    connection at its end. The parameters are those of :func:`latchwork.connect`."""

    async def connected() -> Locks:
        native = await _connecting(url, store_file, store_command)
        configured = _configured(native, namespace, ttl, holder, max_hold, lock_delay, op_timeout, renew_every)
        return Locks(configured, namespace or "")

    return Connecting(connected())


async def doctor(url: Optional[str] = None) -> Report:
    """Reports whether a store is fit for locks."""
    return Report.of(await _native.doctor(_address(url)))


async def init(url: Optional[str] = None) -> Prepared:
    """Prepares a store for its first locks, as :func:`latchwork.init`."""
    return Prepared.of(await _native.init(_address(url)))


async def ls(prefix: str = "", url: Optional[str] = None) -> List[LockView]:
    """Lists the locks of a store. With a connection, use :meth:`Locks.ls`."""
    async with connect(url) as locks:
        return await locks.ls(prefix)
