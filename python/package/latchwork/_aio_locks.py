"""Locks for tasks: what ``await latchwork.aio.connect()`` gives."""

from __future__ import annotations

import os
from typing import Any, Callable, Coroutine, List, Optional, TypeVar, Union

from . import _address, _configured, _connecting, _loops, _native
from ._aio_elections import Election
from ._aio_once import Once
from ._contexts import ByTasks
from ._factory import Factory, Sides
from ._guards import AsyncGuard
from ._loops import Acquiring
from ._times import Duration, maybe
from ._views import ForceReleased, LockView, Prepared, Report

_L = TypeVar("_L", bound="Locks")


class Lock(ByTasks[_native.Lock, AsyncGuard]):
    """A lock that is not held yet: cheap, does no I/O, may be kept and shared between tasks. It is not reentrant."""

    __slots__ = ()

    _module = "aio."

    def acquire(self, timeout: Optional[Duration] = None) -> Acquiring[AsyncGuard]:
        """Waits for the lock: ``guard = await lock.acquire()``, or ``async with lock.acquire(timeout=5) as guard``.

        :raises TimedOut: The lock was not free within ``timeout``; the message names the holder.
        :raises Unreachable: The store did not answer.
        """
        return Acquiring(self._native.acquire(maybe(timeout, "timeout")).giving(AsyncGuard))

    def try_acquire(self) -> Coroutine[Any, Any, Optional[AsyncGuard]]:
        """Acquires the lock if it is free, and returns ``None`` if it is not."""
        return self._native.try_acquire().giving(AsyncGuard)

    def _acquiring(self) -> _native.Operation:
        return self._native.acquire()


class ReentrantLock(ByTasks[_native.Lock, AsyncGuard]):
    """A mutex that its owner may acquire again. The owner is the task, or the ``owner`` that you name."""

    __slots__ = ()

    _module = "aio."

    def acquire(
        self, timeout: Optional[Duration] = None, owner: Optional[str] = None
    ) -> Acquiring[AsyncGuard]:
        """Waits for the lock, unless the owner has it already."""
        return Acquiring(self._acquire(maybe(timeout, "timeout"), owner))

    async def _acquire(self, timeout: Optional[float], owner: Optional[str]) -> AsyncGuard:
        owner = owner if owner is not None else _loops.task_owner()
        guard: AsyncGuard = await self._native.acquire(timeout, owner).giving(AsyncGuard)
        return guard

    async def try_acquire(self, owner: Optional[str] = None) -> Optional[AsyncGuard]:
        """Acquires the lock if it is free or the owner has it, and returns ``None`` otherwise."""
        owner = owner if owner is not None else _loops.task_owner()
        guard: Optional[AsyncGuard] = await self._native.try_acquire(owner).giving(AsyncGuard)
        return guard

    def _acquiring(self) -> _native.Operation:
        return self._native.acquire(None, _loops.task_owner())


class RWLock(Sides[Lock]):
    """A read-write lock: many readers at a time, or one writer. Both sides are locks of their own."""

    __slots__ = ()


class Locks(Factory[Lock, RWLock, ReentrantLock, Election, Once]):
    """A connection to a store, which hands out locks. Share one between all tasks. The parameters are those of
    :class:`latchwork.Locks`."""

    __slots__ = ()

    _lock, _rwlock, _reentrant, _election, _once = Lock, RWLock, ReentrantLock, Election, Once

    async def ls(self, prefix: str = "") -> List[LockView]:
        """Lists the keys that are held, waited for or closed. Changes nothing."""
        return [LockView.of(view) for view in await self._native.list(prefix)]

    async def show(self, name: str) -> LockView:
        """Returns the holders and the waiters of a key. Changes nothing."""
        return LockView.of((await self._native.inspect(name))[0])

    async def force_release(self, name: str) -> ForceReleased:
        """Releases a key by force, as :meth:`latchwork.Locks.force_release`."""
        return ForceReleased.of(await self._native.force_release(name))

    async def close(self) -> None:
        """Refuses the waiters, then releases every lock. Guards that are still alive are lost."""
        await self._native.close()

    async def __aenter__(self: _L) -> _L:
        return self

    async def __aexit__(self, *_: Any) -> None:
        await self.close()


async def connect(
    url: Union[None, str, Callable[[], str]] = None,
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
) -> Locks:
    """Connects to a store. The parameters are those of :func:`latchwork.connect`."""
    native = await _connecting(url, store_file, store_command)
    return Locks(_configured(native, namespace, ttl, holder, max_hold, lock_delay, op_timeout, renew_every))


async def doctor(url: Optional[str] = None) -> Report:
    """Reports whether a store is fit for locks."""
    return Report.of(await _native.doctor(_address(url)))


async def init(url: Optional[str] = None) -> Prepared:
    """Prepares a store for its first locks, as :func:`latchwork.init`."""
    return Prepared.of(await _native.init(_address(url)))


async def ls(prefix: str = "", url: Optional[str] = None) -> List[LockView]:
    """Lists the locks of a store. With a connection, use :meth:`Locks.ls`."""
    async with await connect(url) as locks:
        return await locks.ls(prefix)
