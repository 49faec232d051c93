"""Locks for threads: what ``latchwork.connect()`` gives."""

from __future__ import annotations

from typing import Any, List, Optional, TypeVar

from . import _native
from ._contexts import ByTasks, ByThreads
from ._elections import Election
from ._factory import Factory, Sides
from ._guards import AsyncGuard, Guard
from ._once import Once
from ._times import Duration, maybe
from ._views import ForceReleased, LockView

_L = TypeVar("_L", bound="Locks")


class Lock(ByThreads[_native.Lock, Guard], ByTasks[_native.Lock, AsyncGuard]):
    """A lock that is not held yet: cheap, does no I/O, may be kept and shared between threads.

    ``with lock:`` and ``async with lock:`` wait for it without a limit. It is **not** reentrant: a second ``acquire``
    in the same thread waits for the first one's release. See :meth:`Locks.reentrant`.

    >>> import latchwork
    >>> locks = latchwork.connect("mem:")
    >>> lock = locks.lock("report", ttl=30)
    >>> with lock as guard:
    ...     lock.try_acquire() is None
    True
    >>> locks.close()
    """

    __slots__ = ()

    def acquire(self, timeout: Optional[Duration] = None) -> Guard:
        """Waits for the lock. Without ``timeout`` it waits without a limit.

        Ctrl-C ends the wait within 50 ms and leaves no claim behind.

        :raises TimedOut: The lock was not free within ``timeout``; the message names the holder.
        :raises Unreachable: The store did not answer.
        """
        guard: Guard = self._native.acquire(maybe(timeout, "timeout")).giving(Guard).wait()
        return guard

    def try_acquire(self) -> Optional[Guard]:
        """Acquires the lock if it is free, and returns ``None`` if it is not."""
        guard: Optional[Guard] = self._native.try_acquire().giving(Guard).wait()
        return guard

    def _enter(self) -> Guard:
        return self.acquire()

    def _acquiring(self) -> _native.Operation:
        return self._native.acquire()


class ReentrantLock(ByThreads[_native.Lock, Guard]):
    """A mutex that its owner may acquire again. The owner is the thread, or the ``owner`` that you name.

    The lock is released with the last of its guards.
    """

    __slots__ = ()

    def acquire(self, timeout: Optional[Duration] = None, owner: Optional[str] = None) -> Guard:
        """Waits for the lock, unless the owner has it already."""
        guard: Guard = self._native.acquire(maybe(timeout, "timeout"), owner).giving(Guard).wait()
        return guard

    def try_acquire(self, owner: Optional[str] = None) -> Optional[Guard]:
        """Acquires the lock if it is free or the owner has it, and returns ``None`` otherwise."""
        guard: Optional[Guard] = self._native.try_acquire(owner).giving(Guard).wait()
        return guard

    def _enter(self) -> Guard:
        return self.acquire()


class RWLock(Sides[Lock]):
    """A read-write lock: many readers at a time, or one writer. Both sides are locks of their own."""

    __slots__ = ()


class Locks(Factory[Lock, RWLock, ReentrantLock, Election, Once]):
    """A connection to a store, which hands out locks. Share one between all threads.

    It is closed by :meth:`close`, by ``with``, and when the process ends; every lock is released then.
    """

    __slots__ = ()

    _lock, _rwlock, _reentrant, _election, _once = Lock, RWLock, ReentrantLock, Election, Once

    def ls(self, prefix: str = "") -> List[LockView]:
        """Lists the keys that are held, waited for or closed. Changes nothing."""
        return [LockView.of(view) for view in self._native.list(prefix).wait()]

    def show(self, name: str) -> LockView:
        """Returns the holders and the waiters of a key. Changes nothing."""
        return LockView.of(self._native.inspect(name).wait()[0])

    def force_release(self, name: str) -> ForceReleased:
        """Releases a key by force. The next token is larger, so a resource that checks tokens refuses the evicted
        holder, which learns of it at its next renewal."""
        return ForceReleased.of(self._native.force_release(name).wait())

    def close(self) -> None:
        """Refuses the waiters, then releases every lock. Guards that are still alive are lost."""
        self._native.close().wait()

    def __enter__(self: _L) -> _L:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()
