"""Locks for tasks: what ``await latchwork.aio.connect()`` gives."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Iterable, List, Optional, Tuple, Type, TypeVar, Union

from . import _configured, _loops, _native, default_store
from ._aio_elections import Election
from ._aio_once import Once
from ._guards import AsyncGuard
from ._locks import Settings, Stacks, _count, _names, options, period
from ._loops import Acquiring
from ._times import Duration, maybe
from ._views import Finding, ForceReleased, LockView, Report

_L = TypeVar("_L", bound="Locks")


class Lock:
    """A lock that is not held yet: cheap, does no I/O, may be kept and shared between tasks. It is not reentrant."""

    __slots__ = ("_native", "_name", "_stacks")

    def __init__(self, native: Union[_native.Lock, _native.Multi], name: str) -> None:
        self._native = native
        self._name = name
        self._stacks = Stacks()

    @property
    def name(self) -> str:
        """The name, without the namespace."""
        return self._name

    def acquire(self, timeout: Optional[Duration] = None) -> Acquiring[AsyncGuard]:
        """Waits for the lock: ``guard = await lock.acquire()``, or ``async with lock.acquire(timeout=5) as guard``.

        :raises TimedOut: The lock was not free within ``timeout``; the message names the holder.
        :raises Unreachable: The store did not answer.
        """
        return Acquiring(self._acquire(maybe(timeout, "timeout")))

    async def _acquire(self, timeout: Optional[float]) -> AsyncGuard:
        return AsyncGuard(await self._native.acquire(timeout).on(_loops.bridge()))

    async def try_acquire(self) -> Optional[AsyncGuard]:
        """Acquires the lock if it is free, and returns ``None`` if it is not."""
        hold = await self._native.try_acquire().on(_loops.bridge())
        return None if hold is None else AsyncGuard(hold)

    async def __aenter__(self) -> AsyncGuard:
        guard = await self._acquire(None)
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
        return f"<aio.Lock {self._name!r}>"


class ReentrantLock:
    """A mutex that its owner may acquire again. The owner is the task, or the ``owner`` that you name."""

    __slots__ = ("_native", "_name", "_stacks")

    def __init__(self, native: _native.Reentrant, name: str) -> None:
        self._native = native
        self._name = name
        self._stacks = Stacks()

    @property
    def name(self) -> str:
        """The name, without the namespace."""
        return self._name

    def acquire(
        self, timeout: Optional[Duration] = None, owner: Optional[str] = None
    ) -> Acquiring[AsyncGuard]:
        """Waits for the lock, unless the owner has it already."""
        return Acquiring(self._acquire(maybe(timeout, "timeout"), owner))

    async def _acquire(self, timeout: Optional[float], owner: Optional[str]) -> AsyncGuard:
        owner = owner if owner is not None else _loops.task_owner()
        return AsyncGuard(await self._native.acquire(owner, timeout).on(_loops.bridge()))

    async def try_acquire(self, owner: Optional[str] = None) -> Optional[AsyncGuard]:
        """Acquires the lock if it is free or the owner has it, and returns ``None`` otherwise."""
        owner = owner if owner is not None else _loops.task_owner()
        hold = await self._native.try_acquire(owner).on(_loops.bridge())
        return None if hold is None else AsyncGuard(hold)

    async def __aenter__(self) -> AsyncGuard:
        guard = await self._acquire(None, None)
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


class RWLock:
    """A read-write lock: many readers at a time, or one writer. Both sides are locks of their own."""

    __slots__ = ("read", "write")

    def __init__(self, sides: Tuple[_native.Lock, _native.Lock], name: str) -> None:
        read, write = sides
        #: The lock of readers.
        self.read = Lock(read, name)
        #: The lock of writers.
        self.write = Lock(write, name)


class Locks(Settings):
    """A connection to a store, which hands out locks. Share one between all tasks. The parameters are those of
    :class:`latchwork.Locks`."""

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
        """Returns a mutex: one holder at a time among all users of the store."""
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
        """Returns a read-write lock: ``async with rw.read:`` and ``async with rw.write:``."""
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
        """Returns a lock that takes ``permits`` of the ``of`` permits of a semaphore."""
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
        """Returns a mutex that its task may acquire again."""
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
        """Returns several mutexes that are acquired together: all or none."""
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
        """Returns an election: one of the candidates leads."""
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
        """Returns a task that runs once in each period, on one of the callers."""
        own = options(ttl, False, holder, max_hold, lock_delay)
        return Once(self._native.once(name, period(every), tz, own), name)

    async def ls(self, prefix: str = "") -> List[LockView]:
        """Lists the keys that are held, waited for or closed. Changes nothing."""
        return [LockView.of(view) for view in await self._native.list(prefix).on(_loops.bridge())]

    async def show(self, name: str) -> LockView:
        """Returns the holders and the waiters of a key. Changes nothing."""
        return LockView.of((await self._native.inspect(name).on(_loops.bridge()))[0])

    async def force_release(self, name: str) -> ForceReleased:
        """Releases a key by force, as :meth:`latchwork.Locks.force_release`."""
        return ForceReleased.of(await self._native.force_release(name).on(_loops.bridge()))

    def namespace(self: _L, namespace: str) -> _L:
        """Returns the same connection with all keys in a namespace: ``namespace:name``."""
        return type(self)(self._native.set_text("namespace", namespace))

    async def close(self) -> None:
        """Refuses the waiters, then releases every lock. Guards that are still alive are lost."""
        await self._native.close().on(_loops.bridge())

    async def __aenter__(self: _L) -> _L:
        return self

    async def __aexit__(self, *_: Any) -> None:
        await self.close()


async def connect(
    url: Optional[str] = None,
    *,
    namespace: Optional[str] = None,
    ttl: Optional[Duration] = None,
    holder: Optional[str] = None,
    max_hold: Optional[Duration] = None,
    lock_delay: Optional[Duration] = None,
    op_timeout: Optional[Duration] = None,
    renew_every: Optional[Duration] = None,
) -> Locks:
    """Connects to a store. The parameters are those of :func:`latchwork.connect`."""
    address = default_store() if url is None else url
    native = await _native.connect(address).on(_loops.bridge())
    return Locks(_configured(native, namespace, ttl, holder, max_hold, lock_delay, op_timeout, renew_every))


async def doctor(url: Optional[str] = None) -> Report:
    """Reports whether a store is fit for locks."""
    address = default_store() if url is None else url
    store, findings = await _native.doctor(address).on(_loops.bridge())
    return Report(store, tuple(Finding(**finding) for finding in findings))
