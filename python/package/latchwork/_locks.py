"""Locks for threads: what ``latchwork.connect()`` gives."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Any, Dict, Iterable, List, Optional, Tuple, Type, TypeVar, Union

from . import _errors, _loops, _native
from ._elections import Election
from ._guards import AsyncGuard, Guard
from ._once import Once
from ._times import Duration, maybe, seconds
from ._views import ForceReleased, LockView

_L = TypeVar("_L", bound="Locks")
_Native = Union[_native.Lock, _native.Multi]


def options(
    ttl: Optional[Duration],
    fair: bool,
    holder: Optional[str],
    max_hold: Optional[Duration],
    lock_delay: Optional[Duration],
) -> _native.Options:
    return (
        maybe(ttl, "ttl"), fair, holder, maybe(max_hold, "max_hold"), maybe(lock_delay, "lock_delay")
    )


class Stacks:
    """The guards of ``with lock:`` of each thread or task, the innermost last."""

    __slots__ = ("_of",)

    def __init__(self) -> None:
        self._of: Dict[Any, List[Any]] = {}

    def push(self, who: Any, guard: Any) -> None:
        self._of.setdefault(who, []).append(guard)

    def pop(self, who: Any) -> Any:
        stack = self._of[who]
        guard = stack.pop()
        if not stack:
            del self._of[who]
        return guard


class Lock:
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

    __slots__ = ("_native", "_name", "_stacks")

    def __init__(self, native: _Native, name: str) -> None:
        self._native = native
        self._name = name
        self._stacks = Stacks()

    @property
    def name(self) -> str:
        """The name, without the namespace."""
        return self._name

    def acquire(self, timeout: Optional[Duration] = None) -> Guard:
        """Waits for the lock. Without ``timeout`` it waits without a limit.

        Ctrl-C ends the wait within 50 ms and leaves no claim behind.

        :raises TimedOut: The lock was not free within ``timeout``; the message names the holder.
        :raises Unreachable: The store did not answer.
        """
        return Guard(self._native.acquire(maybe(timeout, "timeout")).wait())

    def try_acquire(self) -> Optional[Guard]:
        """Acquires the lock if it is free, and returns ``None`` if it is not."""
        hold = self._native.try_acquire().wait()
        return None if hold is None else Guard(hold)

    def __enter__(self) -> Guard:
        guard = self.acquire()
        self._stacks.push(threading.get_ident(), guard)
        return guard

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        raised: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        guard: Guard = self._stacks.pop(threading.get_ident())
        guard.__exit__(kind, raised, trace)

    async def __aenter__(self) -> AsyncGuard:
        guard = AsyncGuard(await self._native.acquire(None).on(_loops.bridge()))
        self._stacks.push(_loops.task(), guard)
        return guard

    async def __aexit__(
        self,
        kind: Optional[Type[BaseException]],
        raised: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        guard: AsyncGuard = self._stacks.pop(_loops.task())
        await guard.__aexit__(kind, raised, trace)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._name!r}>"

    def __reduce__(self) -> Any:
        raise TypeError("a lock belongs to its process and cannot be pickled: connect in the other process")


class ReentrantLock:
    """A mutex that its owner may acquire again. The owner is the thread, or the ``owner`` that you name.

    The lock is released with the last of its guards.
    """

    __slots__ = ("_native", "_name", "_stacks")

    def __init__(self, native: _native.Reentrant, name: str) -> None:
        self._native = native
        self._name = name
        self._stacks = Stacks()

    @property
    def name(self) -> str:
        """The name, without the namespace."""
        return self._name

    def acquire(self, timeout: Optional[Duration] = None, owner: Optional[str] = None) -> Guard:
        """Waits for the lock, unless the owner has it already."""
        return Guard(self._native.acquire(owner, maybe(timeout, "timeout")).wait())

    def try_acquire(self, owner: Optional[str] = None) -> Optional[Guard]:
        """Acquires the lock if it is free or the owner has it, and returns ``None`` otherwise."""
        hold = self._native.try_acquire(owner).wait()
        return None if hold is None else Guard(hold)

    def __enter__(self) -> Guard:
        guard = self.acquire()
        self._stacks.push(threading.get_ident(), guard)
        return guard

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        raised: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        guard: Guard = self._stacks.pop(threading.get_ident())
        guard.__exit__(kind, raised, trace)

    def __repr__(self) -> str:
        return f"<ReentrantLock {self._name!r}>"


class RWLock:
    """A read-write lock: many readers at a time, or one writer. Both sides are locks of their own."""

    __slots__ = ("read", "write")

    def __init__(self, sides: Tuple[_native.Lock, _native.Lock], name: str) -> None:
        read, write = sides
        #: The lock of readers.
        self.read = Lock(read, name)
        #: The lock of writers.
        self.write = Lock(write, name)


class Settings:
    """What managers for threads and for tasks have in common."""

    __slots__ = ("_native",)

    def __init__(self, native: _native.Manager) -> None:
        self._native = native

    @property
    def store(self) -> str:
        """The store's name."""
        return self._native.store

    def __repr__(self) -> str:
        return f"<{type(self).__name__} on {self.store}>"

    def __reduce__(self) -> Any:
        raise TypeError("a connection belongs to its process and cannot be pickled: connect in the other process")


class Locks(Settings):
    """A connection to a store, which hands out locks. Share one between all threads.

    It is closed by :meth:`close`, by ``with``, and when the process ends; every lock is released then.
    """

    __slots__ = ()

    def lock(
        self,
        name: str,
        *,
        ttl: Optional[Duration] = None,
        fair: bool = False,
        holder: Optional[str] = None,
        max_hold: Optional[Duration] = None,
        lock_delay: Optional[Duration] = None,
    ) -> Lock:
        """Returns a mutex: one holder at a time among all users of the store.

        :param ttl: How long the store keeps the lock without a renewal: if the holder dies, the lock is free after
            it. Default: the store's, usually 30 s. It is renewed in the background and is no limit of the hold.
        :param fair: Serves the waiters in the order in which they came, also those of one process.
        :param holder: What others see of the holder. Default: host, process and script.
        :param max_hold: The longest hold; after it the lock is lost, even if the guard lives.
        :param lock_delay: How long the key stays closed after a hold that ended without a release.
        """
        own = options(ttl, fair, holder, max_hold, lock_delay)
        return Lock(self._native.lock(name, own), name)

    def rwlock(
        self,
        name: str,
        *,
        ttl: Optional[Duration] = None,
        fair: bool = False,
        holder: Optional[str] = None,
        max_hold: Optional[Duration] = None,
        lock_delay: Optional[Duration] = None,
    ) -> RWLock:
        """Returns a read-write lock: ``with rw.read:`` and ``with rw.write:``.

        >>> import latchwork
        >>> with latchwork.connect("mem:") as locks:
        ...     catalogue = locks.rwlock("catalogue")
        ...     with catalogue.read, catalogue.read.acquire(timeout=1):
        ...         catalogue.write.try_acquire() is None
        True
        """
        own = options(ttl, fair, holder, max_hold, lock_delay)
        return RWLock(self._native.rwlock(name, own), name)

    def semaphore(
        self,
        name: str,
        of: int,
        permits: int = 1,
        *,
        ttl: Optional[Duration] = None,
        fair: bool = False,
        holder: Optional[str] = None,
        max_hold: Optional[Duration] = None,
        lock_delay: Optional[Duration] = None,
    ) -> Lock:
        """Returns a lock that takes ``permits`` of the ``of`` permits of a semaphore.

        All users of the name must use the same ``of``; another one raises :class:`Mismatch`.

        >>> import latchwork
        >>> with latchwork.connect("mem:") as locks:
        ...     gpu = locks.semaphore("gpu", of=2)
        ...     with gpu, gpu:
        ...         gpu.try_acquire() is None
        True
        """
        own = options(ttl, fair, holder, max_hold, lock_delay)
        _count(of, "of")
        return Lock(self._native.semaphore(name, of, _count(permits, "permits"), own), name)

    def reentrant(
        self,
        name: str,
        *,
        ttl: Optional[Duration] = None,
        fair: bool = False,
        holder: Optional[str] = None,
        max_hold: Optional[Duration] = None,
        lock_delay: Optional[Duration] = None,
    ) -> ReentrantLock:
        """Returns a mutex that its thread may acquire again.

        >>> import latchwork
        >>> with latchwork.connect("mem:") as locks:
        ...     lock = locks.reentrant("account/7")
        ...     with lock as outer, lock as inner:
        ...         outer.token == inner.token
        True
        """
        own = options(ttl, fair, holder, max_hold, lock_delay)
        return ReentrantLock(self._native.reentrant(name, own), name)

    def multi(
        self,
        names: Iterable[str],
        *,
        ttl: Optional[Duration] = None,
        fair: bool = False,
        holder: Optional[str] = None,
        max_hold: Optional[Duration] = None,
        lock_delay: Optional[Duration] = None,
    ) -> Lock:
        """Returns several mutexes that are acquired together: all or none, in an order that cannot deadlock.

        >>> import latchwork
        >>> with latchwork.connect("mem:") as locks:
        ...     with locks.multi(["account/7", "account/9"]) as guard:
        ...         sorted(guard.tokens)
        ['account/7', 'account/9']
        """
        own = options(ttl, fair, holder, max_hold, lock_delay)
        every = _names(names)
        return Lock(self._native.multi(every, own), ", ".join(every))

    def election(
        self,
        name: str,
        *,
        candidate: Optional[str] = None,
        ttl: Optional[Duration] = None,
        max_hold: Optional[Duration] = None,
        lock_delay: Optional[Duration] = None,
        look_every: Optional[Duration] = None,
    ) -> Election:
        """Returns an election: one of the candidates leads.

        :param candidate: How others reach this candidate, usually an address.
        """
        return Election(
            self._native.election(
                name, candidate, maybe(ttl, "ttl"), maybe(max_hold, "max_hold"),
                maybe(lock_delay, "lock_delay"), maybe(look_every, "look_every"),
            ),
            name,
        )

    def once(
        self,
        name: str,
        every: Union[str, Duration],
        *,
        tz: Optional[str] = None,
        ttl: Optional[Duration] = None,
        holder: Optional[str] = None,
        max_hold: Optional[Duration] = None,
        lock_delay: Optional[Duration] = None,
    ) -> Once:
        """Returns a task that runs once in each period, on one of the callers: a decorator, and a context.

        :param every: The period: ``"1d"``, ``"1h"``, ``"15m"``, ``"1mo"`` ..., or seconds, or a timedelta.
        :param tz: The time zone of days, weeks and months, such as ``"Europe/Berlin"``. Default: UTC.
        """
        own = options(ttl, False, holder, max_hold, lock_delay)
        return Once(self._native.once(name, period(every), tz, own), name)

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

    def namespace(self: _L, namespace: str) -> _L:
        """Returns the same connection with all keys in a namespace: ``namespace:name``."""
        return type(self)(self._native.set_text("namespace", namespace))

    def close(self) -> None:
        """Refuses the waiters, then releases every lock. Guards that are still alive are lost."""
        self._native.close().wait()

    def __enter__(self: _L) -> _L:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


def _count(number: int, field: str) -> int:
    if isinstance(number, bool) or not isinstance(number, int) or not 0 < number < 2**32:
        raise _errors.invalid(field, f"{number!r} is not a number of permits from 1 up")
    return number


def _names(names: Iterable[str]) -> List[str]:
    if isinstance(names, str):
        raise _errors.invalid("names", f"{names!r} is one name; pass a list of names")
    return list(names)


def period(every: Union[str, Duration]) -> str:
    """The period as the engine reads it."""
    if isinstance(every, str):
        return every
    length = seconds(every, "every")
    if length < 1 or length != int(length):
        raise _errors.invalid("every", f"{every!r} is not a whole number of seconds from 1 up")
    return f"{int(length)}s"
