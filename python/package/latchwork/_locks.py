"""Locks for threads: what ``latchwork.connect()`` gives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, List, NoReturn, Optional, TypeVar, Union

from . import _greenlets, _native
from ._contexts import ByTasks, ByThreads
from ._elections import Election
from ._elsewhere import of_acquire
from ._errors import Lost
from ._factory import Factory, Sides, maybe_text
from ._guards import AsyncGuard, Guard
from ._loops import Acquiring
from ._once import Once
from ._times import Duration, maybe

if TYPE_CHECKING:
    from ._views import ForceReleased, LockView, Resized

_L = TypeVar("_L", bound="Locks")
C = TypeVar("C", bound=Callable[[Lost], Any])
W = TypeVar("W", bound=Callable[..., Any])


class Lock(ByThreads[_native.Lock, Guard], ByTasks[_native.Lock, AsyncGuard]):
    """A lock that is not held yet: cheap, does no I/O, may be kept and shared between threads.

    ``with lock:`` and ``async with lock:`` wait for it without a limit. It is **not** reentrant: a second ``acquire``
    in the same thread waits for the first one's release. See :meth:`Locks.reentrant`.

    >>> import latchwork
    >>> locks = latchwork.connect("mem:")
    >>> lock = locks.lock("report", ttl=30)
    >>> with lock:
    ...     lock.try_acquire() is None
    True
    >>> if (guard := lock.try_acquire()):     # the guard is the hold: without a name for it, the lock is released at once
    ...     with guard:
    ...         guard.state
    'held'
    >>> locks.close()
    """

    __slots__ = ()

    def acquire(self, timeout: Optional[Duration] = None, **unknown: NoReturn) -> Guard:
        """Waits for the lock. Without ``timeout`` it waits without a limit.

        Ctrl-C ends the wait within 50 ms and leaves no claim behind.

        :raises TimedOut: The lock was not free within ``timeout``; the message names the holder.
        :raises Unreachable: The store did not answer.
        """
        if unknown:
            raise of_acquire(unknown)
        guard: Guard = self._native.acquire(maybe(timeout, "timeout")).giving(Guard).wait()
        return guard

    def try_acquire(self) -> Optional[Guard]:
        """Acquires the lock if it is free, and returns ``None`` if it is not. Keep the guard, which is the hold:
        ``if (guard := lock.try_acquire()):``, then ``with guard:``."""
        guard: Optional[Guard] = self._native.try_acquire().giving(Guard).wait()
        return guard

    def _acquire(self) -> Guard:
        return self.acquire()

    if TYPE_CHECKING:

        def __enter__(self) -> Guard: ...

    else:
        __enter__ = _native.Blocks._enter


class ReentrantLock(ByThreads[_native.Lock, Guard]):
    """A mutex that its owner may acquire again. The owner is the thread (with gevent the greenlet), or the ``owner`` that you
    name.

    The lock is released with the last of its guards.
    """

    __slots__ = ()

    def acquire(
        self, timeout: Optional[Duration] = None, owner: Optional[str] = None, **unknown: NoReturn
    ) -> Guard:
        """Waits for the lock, unless the owner has it already."""
        if unknown:
            raise of_acquire(unknown)
        who = _greenlets.owner() if owner is None else owner
        native = self._native.acquire(maybe(timeout, "timeout"), maybe_text(who, "owner"))
        guard: Guard = native.giving(Guard).wait()
        return guard

    def try_acquire(self, owner: Optional[str] = None) -> Optional[Guard]:
        """Acquires the lock if it is free or the owner has it, and returns ``None`` otherwise."""
        who = _greenlets.owner() if owner is None else owner
        guard: Optional[Guard] = self._native.try_acquire(maybe_text(who, "owner")).giving(Guard).wait()
        return guard

    def _acquire(self) -> Guard:
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
        """Decorates a function, a method or a coroutine function, so that each call runs under a lock.

        :param name: The name of the lock, with the parameters of the function: ``"user/{user_id}"``, ``"{user.id}"``.
        :param timeout: How long a call waits before it raises :class:`TimedOut`.

        A function with a parameter ``guard`` is given the guard. A coroutine is cancelled if the lock is lost; any other
        function runs to its end, and the call raises :class:`Lost`.

        >>> import latchwork
        >>> from latchwork import Guard
        >>> from typing import Optional
        >>> locks = latchwork.connect("mem:")
        >>> @locks.synchronized("user/{user_id}", timeout=5)
        ... def rename(user_id: int, name: str, guard: Optional[Guard] = None) -> str:
        ...     assert guard
        ...     return f"{guard.key} is {name}"
        >>> rename(7, name="Ada")
        'user/7 is Ada'
        >>> locks.close()
        """
        from ._synchronized import synchronized

        limit = maybe(timeout, "timeout")

        def made(key: str) -> Lock:
            return self.lock(key, ttl=ttl, fair=fair, holder=holder, max_hold=max_hold, lock_delay=lock_delay)

        def run(key: str, work: Callable[[Guard], Any]) -> Any:
            with made(key).acquire(limit) as guard:
                return work(guard)

        async def run_async(key: str, work: Callable[[AsyncGuard], Any]) -> Any:
            async with Acquiring(made(key)._native.acquire(limit).giving(AsyncGuard)) as guard:
                return await guard.run(work(guard))

        return synchronized(name, run, run_async, only_async=False)

    def on_lost(self, callback: C) -> C:
        """Calls ``callback(lost)`` with a :class:`Lost` at each loss of a lock of this connection, in a thread of the
        package. It may be used as a decorator. Guards that :meth:`close` ends are no losses.

        Each loss is also logged, by the logger ``latchwork``.
        """
        from ._work import blocking

        blocking(callback, "on_lost")
        self._lost.called.append(callback)
        return callback

    def ls(self, prefix: str = "") -> List[LockView]:
        """Lists the keys that are held, waited for or closed. Changes nothing."""
        from ._views import LockView, LockViews

        prefix, namespace = self._own(prefix, "prefix"), self._namespace
        return LockViews(LockView.of(view, namespace) for view in self._native.list(prefix).wait())

    def show(self, name: Union[str, LockView]) -> LockView:
        """Returns the holders and the waiters of a key. Changes nothing.

        :param name: The name, without the namespace, or what :meth:`ls` gave.
        """
        from ._views import LockView

        return LockView.of(self._native.inspect(self._own(name)).wait()[0], self._namespace)

    def force_release(self, name: Union[str, LockView]) -> ForceReleased:
        """Releases a key by force. The next token is larger, so a resource that checks tokens refuses the evicted
        holder, which learns of it at its next renewal.

        :param name: The name, without the namespace, or what :meth:`ls` gave.
        """
        from ._views import ForceReleased

        return ForceReleased.of(self._native.force_release(self._own(name)).wait())

    def resize(self, name: Union[str, LockView], of: int) -> Resized:
        """Changes the number of permits of a semaphore, for all who hold some or wait for some. Nobody is evicted: if more
        permits are held than there are now, nobody is admitted until enough of them are released.

        :param name: The name, without the namespace, or what :meth:`ls` gave.

        >>> import latchwork
        >>> with latchwork.connect("mem:") as locks:
        ...     with locks.semaphore("gpu", of=2):
        ...         print(locks.resize("gpu", 3))
        the limit was changed from 2 to 3; 1 permit is held
        """
        from ._factory import _count
        from ._views import Resized

        return Resized(*self._native.resize(self._own(name), _count(of, "of")).wait())

    def close(self) -> None:
        """Refuses the waiters, then releases every lock. Guards that are still alive are lost."""
        self._native.close().wait()

    def __enter__(self: _L) -> _L:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()
