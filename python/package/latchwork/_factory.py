"""What connections for threads and for tasks have in common: they hand out locks."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, Iterable, List, NoReturn, Optional, Type, TypeVar, Union

from . import _errors, _events, _native
from ._contexts import Named
from ._elsewhere import of_lock
from ._times import Duration, maybe, seconds

if TYPE_CHECKING:
    from ._views import LockView

L = TypeVar("L", bound="Named[Any]")
W = TypeVar("W", bound="Sides[Any]")
R = TypeVar("R", bound="Named[Any]")
E = TypeVar("E", bound="Named[Any]")
O = TypeVar("O", bound="Named[Any]")
_F = TypeVar("_F", bound="Factory[Any, Any, Any, Any, Any]")
S = TypeVar("S")


class Sides(Generic[S]):
    """A read-write lock: many readers at a time, or one writer. Both sides are locks of their own."""

    __slots__ = ("_shown", "read", "write")

    def __init__(self, read: S, write: S, shown: str) -> None:
        self._shown = shown
        #: The lock of readers.
        self.read: S = read
        #: The lock of writers.
        self.write: S = write

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._shown}>"


class Factory(Generic[L, W, R, E, O]):
    """A connection to a store, which hands out locks."""

    __slots__ = ("_native", "_namespace", "_lost", "__weakref__")

    _lock: Type[L]
    _rwlock: Type[W]
    _reentrant: Type[R]
    _election: Type[E]
    _once: Type[O]

    def __init__(self, native: _native.Manager, namespace: str = "") -> None:
        self._native = native
        self._namespace = namespace
        self._lost = _events.callbacks(native)

    @property
    def store(self) -> str:
        """The store's name."""
        return self._native.store

    def __repr__(self) -> str:
        namespace = f" in {self._namespace!r}" if self._namespace else ""
        return f"<{type(self).__name__} on {self.store}{namespace}>"

    def __reduce__(self) -> Any:
        raise TypeError("a connection belongs to its process and cannot be pickled: connect in the other process")

    def lock(
        self,
        name: str,
        *,
        ttl: Optional[Duration] = None,
        fair: bool = False,
        holder: Optional[str] = None,
        max_hold: Optional[Duration] = None,
        lock_delay: Optional[Duration] = None,
        **unknown: NoReturn,
    ) -> L:
        """Returns a mutex: one holder at a time among all users of the store.

        :param ttl: How long the store keeps the lock without a renewal: if the holder dies, the lock is free after
            it. Default: the store's, usually 30 s. It is renewed in the background and is no limit of the hold.
        :param fair: Serves the waiters in the order in which they came, also those of one process.
        :param holder: What others see of the holder. Default: host, process and script.
        :param max_hold: The longest hold; after it the lock is lost, even if the guard lives.
        :param lock_delay: How long the key stays closed after a hold that ended without a release.
        """
        if unknown:
            raise of_lock(unknown, "Locks.lock")
        own = _options(ttl, fair, holder, max_hold, lock_delay)
        return self._lock(self._native.lock(text(name, "name"), own), name, self._shown())

    def rwlock(
        self,
        name: str,
        *,
        ttl: Optional[Duration] = None,
        fair: bool = False,
        holder: Optional[str] = None,
        max_hold: Optional[Duration] = None,
        lock_delay: Optional[Duration] = None,
        **unknown: NoReturn,
    ) -> W:
        """Returns a read-write lock: ``with rw.read:`` and ``with rw.write:``, for tasks ``async with``.

        >>> import latchwork
        >>> with latchwork.connect("mem:") as locks:
        ...     catalogue = locks.rwlock("catalogue")
        ...     with catalogue.read, catalogue.read.acquire(timeout=1):
        ...         catalogue.write.try_acquire() is None
        True
        """
        if unknown:
            raise of_lock(unknown, "Locks.rwlock")
        own = _options(ttl, fair, holder, max_hold, lock_delay)
        read, write = self._native.rwlock(text(name, "name"), own)
        sides = self._lock(read, name, self._shown("read")), self._lock(write, name, self._shown("write"))
        return self._rwlock(*sides, repr(name) + self._shown())

    def semaphore(
        self,
        name: str,
        of: int,
        permits: int = 1,
        *,
        resize: str = "never",
        ttl: Optional[Duration] = None,
        fair: bool = False,
        holder: Optional[str] = None,
        max_hold: Optional[Duration] = None,
        lock_delay: Optional[Duration] = None,
        **unknown: NoReturn,
    ) -> L:
        """Returns a lock that takes ``permits`` of the ``of`` permits of a semaphore.

        :param resize: What happens if the semaphore is in use with another ``of``: ``"never"`` raises :class:`Mismatch`,
            ``"to-mine"`` takes the permits if all that are held then fit into this ``of``, and ``"follow"`` if they fit into
            the one that is in use. A rolling deployment of another ``of`` uses ``"to-mine"`` before and after.

        >>> import latchwork
        >>> with latchwork.connect("mem:") as locks:
        ...     gpu = locks.semaphore("gpu", of=2)
        ...     with gpu, gpu:
        ...         gpu.try_acquire() is None
        True
        """
        if unknown:
            raise of_lock(unknown, "Locks.semaphore")
        own = _options(ttl, fair, holder, max_hold, lock_delay)
        _count(of, "of")
        policy = text(resize, "resize")
        native = self._native.semaphore(text(name, "name"), of, _count(permits, "permits"), policy, own)
        return self._lock(native, name, self._shown(f"{permits} of {of} permits"))

    def reentrant(
        self,
        name: str,
        *,
        ttl: Optional[Duration] = None,
        fair: bool = False,
        holder: Optional[str] = None,
        max_hold: Optional[Duration] = None,
        lock_delay: Optional[Duration] = None,
        **unknown: NoReturn,
    ) -> R:
        """Returns a mutex that its thread, or its task, may acquire again.

        >>> import latchwork
        >>> with latchwork.connect("mem:") as locks:
        ...     lock = locks.reentrant("account/7")
        ...     with lock as outer, lock as inner:
        ...         outer.token == inner.token
        True
        """
        if unknown:
            raise of_lock(unknown, "Locks.reentrant")
        own = _options(ttl, fair, holder, max_hold, lock_delay)
        return self._reentrant(self._native.reentrant(text(name, "name"), own), name, self._shown())

    def multi(
        self,
        names: Iterable[str],
        *,
        ttl: Optional[Duration] = None,
        fair: bool = False,
        holder: Optional[str] = None,
        max_hold: Optional[Duration] = None,
        lock_delay: Optional[Duration] = None,
        **unknown: NoReturn,
    ) -> L:
        """Returns several mutexes that are acquired together: all or none, in an order that cannot deadlock.

        >>> import latchwork
        >>> with latchwork.connect("mem:") as locks:
        ...     with locks.multi(["account/7", "account/9"]) as guard:
        ...         sorted(guard.tokens)
        ['account/7', 'account/9']
        """
        if unknown:
            raise of_lock(unknown, "Locks.multi")
        own = _options(ttl, fair, holder, max_hold, lock_delay)
        every = _names(names)
        return self._lock(self._native.multi(every, own), ", ".join(every), self._shown("all of them"))

    def election(
        self,
        name: str,
        *,
        candidate: Optional[str] = None,
        ttl: Optional[Duration] = None,
        max_hold: Optional[Duration] = None,
        lock_delay: Optional[Duration] = None,
        look_every: Optional[Duration] = None,
    ) -> E:
        """Returns an election: one of the candidates leads.

        :param candidate: How others reach this candidate, usually an address.
        """
        return self._election(
            self._native.election(
                text(name, "name"), maybe_text(candidate, "candidate"), maybe(ttl, "ttl"), maybe(max_hold, "max_hold"),
                maybe(lock_delay, "lock_delay"), maybe(look_every, "look_every"),
            ),
            name,
            self._shown(),
        )

    def once(
        self,
        name: str,
        every: Union[None, str, Duration] = None,
        *,
        cron: Optional[str] = None,
        tz: Optional[str] = None,
        ttl: Optional[Duration] = None,
        holder: Optional[str] = None,
        max_hold: Optional[Duration] = None,
        lock_delay: Optional[Duration] = None,
    ) -> O:
        """Returns a task that runs once in each period, on one of the callers: a decorator, and a context.

        :param every: The period: ``"1d"``, ``"1h"``, ``"15m"``, ``"1mo"`` ..., or seconds, or a timedelta. A timedelta of
            whole days is so many days of the calendar; ``"1w"`` begins on Mondays, seven days on Thursdays.
        :param cron: In place of ``every``, the five fields of cron: ``"0 3 * * *"``. A period begins at each of their
            moments, and the first call after it runs the task. Start the calls as often as you like, for example each
            minute.
        :param tz: The time zone of days, weeks, months and cron, such as ``"Europe/Berlin"``. Default: UTC.
        """
        own = _options(ttl, False, holder, max_hold, lock_delay)
        native = self._native.once(text(name, "name"), _period(every, cron), maybe_text(tz, "tz"), own)
        return self._once(native, name, self._shown())

    def namespace(self: _F, namespace: str) -> _F:
        """Returns the same connection with all keys in a namespace: ``namespace:name``."""
        return type(self)(self._native.set_text("namespace", text(namespace, "namespace")), namespace)

    def _shown(self, kind: str = "") -> str:
        """What the text of a lock says beside its name."""
        return (f" in {self._namespace!r}" if self._namespace else "") + (f" ({kind})" if kind else "")

    def _own(self, name: Union[str, LockView], field: str = "name") -> str:
        """The name of a key in this namespace. A key with its namespace would be another key."""
        before = f"{self._namespace}:" if self._namespace else ""
        if not isinstance(name, str):
            from ._views import LockView

            if not isinstance(name, LockView):
                return text(name, field)
            if not name.key.startswith(before):
                raise _errors.invalid(field, f"{name.key!r} is not in the namespace {self._namespace!r}")
            return name.key[len(before):]
        if before and text(name, field).startswith(before):
            raise _errors.invalid(
                field, f"{name!r} begins with the namespace of this connection; write {name[len(before):]!r}, or pass what ls() gave"
            )
        return text(name, field)


def _options(
    ttl: Optional[Duration],
    fair: bool,
    holder: Optional[str],
    max_hold: Optional[Duration],
    lock_delay: Optional[Duration],
) -> _native.Options:
    if not isinstance(fair, bool):
        raise _errors.invalid("fair", f"{fair!r} is not True or False")
    return (
        maybe(ttl, "ttl"), fair, maybe_text(holder, "holder"), maybe(max_hold, "max_hold"),
        maybe(lock_delay, "lock_delay"),
    )


def maybe_text(value: Optional[str], field: str) -> Optional[str]:
    return None if value is None else text(value, field)


def text(value: str, field: str) -> str:
    if not isinstance(value, str):
        raise _errors.invalid(field, f"{value!r} is not a str")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise _errors.invalid(field, f"{value!r} is not Unicode text; decode it with errors='replace'") from None
    return value


def _count(number: int, field: str) -> int:
    if isinstance(number, bool) or not isinstance(number, int) or not 0 < number < 2**32:
        raise _errors.invalid(field, f"{number!r} is not a number of permits from 1 up")
    return number


def _names(names: Iterable[str]) -> List[str]:
    if isinstance(names, str):
        raise _errors.invalid("names", f"{names!r} is one name; pass a list of names")
    return [text(name, "names") for name in names]


def _period(every: Union[None, str, Duration], cron: Optional[str]) -> str:
    """The period as the engine reads it. Whole days are of the calendar."""
    if (every is None) == (cron is None):
        raise _errors.invalid("every", "give one of every and cron")
    if cron is not None:
        if len(text(cron, "cron").split()) != 5 and not cron.startswith("@"):
            raise _errors.invalid("cron", f"{cron!r} has not the five fields minute, hour, day, month and weekday")
        return cron
    if isinstance(every, str):
        return text(every, "every")
    if isinstance(every, timedelta) and every.days > 0 and every == timedelta(days=every.days):
        return f"{every.days}d"
    assert every is not None
    length = seconds(every, "every")
    if length < 1 or length != int(length):
        raise _errors.invalid("every", f"{every!r} is not a whole number of seconds from 1 up")
    return f"{int(length)}s"
