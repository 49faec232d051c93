"""Locks of the default store in one line. The process connects at their first use; a forked child connects by itself."""

from __future__ import annotations

import os
from typing import Any, Callable, Dict, NoReturn, Optional, Tuple

from ._elsewhere import of_lock
from ._factory import text
from ._locks import Lock, Locks, W
from ._native import Lock as NativeLock
from ._native import Manager
from ._times import Duration

#: The connections of this process and, if it was forked, of its parent. The end of the process closes them.
_known: Dict[Tuple[int, str], Manager] = {}


def key() -> Tuple[int, str]:
    """What the connection depends on."""
    from . import default_store

    return os.getpid(), default_store()


def kept(where: Tuple[int, str], native: Manager) -> Manager:
    """The connection of all that connect at the same time."""
    return _known.setdefault(where, native)


def manager() -> Manager:
    where = key()
    known = _known.get(where)
    if known is not None:
        return known
    from . import connect

    return kept(where, connect(where[1])._native)


class DefaultLock(Lock):
    """A lock of the default store, which is connected at the first use."""

    __slots__ = ("_options", "_made")

    def __init__(self, name: str, options: Dict[str, Any]) -> None:
        self._name = text(name, "name")
        self._shown = ""
        self._options = options
        self._made: Optional[Tuple[Manager, NativeLock]] = None

    @property
    def _native(self) -> NativeLock:  # type: ignore[override]
        known, made = manager(), self._made
        if made is None or made[0] is not known:
            made = self._made = known, Locks(known).lock(self._name, **self._options)._native
        return made[1]


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
    """Returns a mutex of the default store (:func:`default_store`). Its parameters are those of :meth:`Locks.lock`.

    It connects when it is first acquired, once in each process, and may be made before a fork. The connection is closed
    when the process ends.

    >>> import latchwork, os
    >>> os.environ["LATCHWORK_STORE"] = "mem:"
    >>> with latchwork.lock("stock/42") as guard:
    ...     guard.key
    'stock/42'
    """
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
    """Decorates a function, so that each call runs under a lock of the default store, as :meth:`Locks.synchronized`.

    >>> import latchwork, os
    >>> os.environ["LATCHWORK_STORE"] = "mem:"
    >>> @latchwork.synchronized("report/{day}")
    ... def report(day: str) -> str:
    ...     return f"report of {day}"
    >>> report("Monday")
    'report of Monday'
    """
    return _Late().synchronized(
        name, timeout=timeout, ttl=ttl, fair=fair, holder=holder, max_hold=max_hold, lock_delay=lock_delay
    )


class _Late(Locks):
    """The default store's locks, connected at their first use."""

    __slots__ = ()

    def __init__(self) -> None:
        self._namespace = ""

    @property
    def _native(self) -> Manager:  # type: ignore[override]
        return manager()
