"""Locks inside of web frameworks and task queues. Import the module of the framework that you use: nothing else needs it.

Most need no module. ``latchwork.lock``, ``latchwork.synchronized`` and :func:`once` take the default store
(``LATCHWORK_STORE``), and connect in each process at their first use, also in a forked worker. For a connection with
options of its own, see :func:`per_process`.

>>> import os, latchwork
>>> from latchwork.frameworks import once, per_process
>>> locks = per_process(lambda: latchwork.connect("mem:", namespace="shop"))
>>> with locks().lock("stock/42") as guard:
...     guard.key
'shop:stock/42'
>>> @once("report", every="1d", locks=locks)
... def report() -> str:
...     return "sent"
>>> report().value, report().ran
('sent', False)
"""

from __future__ import annotations

import functools
import inspect
import os
from typing import TYPE_CHECKING, Any, Callable, Dict, Optional, TypeVar, Union

from .. import Locks, Outcome, TimedOut, _default
from .._synchronized import W, synchronized
from .._times import Duration, maybe, seconds
from .._work import blocking

if TYPE_CHECKING:
    from typing_extensions import ParamSpec

    P = ParamSpec("P")

__all__ = ["once", "per_process"]

T = TypeVar("T")


def per_process(connect: Callable[[], Locks]) -> Callable[[], Locks]:
    """Returns a function that connects at its first call in each process, and returns that connection from then on.

    A forked child, as a worker of Celery or gunicorn is, cannot use the connection of its parent: it gets its own.
    """
    #: Of this process and, if it was forked, of its parent.
    known: Dict[int, Locks] = {}

    def locks() -> Locks:
        made = known.get(os.getpid())
        # All threads that connect at the same time get the same one.
        return known.setdefault(os.getpid(), connect()) if made is None else made

    return locks


def default_locks() -> Locks:
    """The connection to the default store."""
    return Locks(_default.manager())


def once(
    name: str,
    every: Union[str, Duration],
    *,
    tz: Optional[str] = None,
    ttl: Optional[Duration] = None,
    locks: Callable[[], Locks] = default_locks,
) -> "Callable[[Callable[P, T]], Callable[P, Outcome[T]]]":
    """Decorates a function, so that it runs once in each period, on one of the callers, as :meth:`latchwork.Locks.once`.
    It connects at the first call, and can be defined before a fork.

    :param locks: Returns the connection. Default: that of the default store.
    """

    def decorate(work: "Callable[P, T]") -> "Callable[P, Outcome[T]]":
        blocking(work, "once")

        @functools.wraps(work)
        def task(*args: "P.args", **kwargs: "P.kwargs") -> "Outcome[T]":
            return locks().once(name, every, tz=tz, ttl=ttl)(work)(*args, **kwargs)

        return task

    return decorate


def _not_free(key: str) -> TimedOut:
    error = TimedOut(f"the lock is not free (key {key!r})")
    error.message, error.key = "the lock is not free", key
    return error


def locked(
    name: str,
    timeout: Duration,
    ttl: Optional[Duration],
    locks: Callable[[], Locks],
    busy: Callable[[TimedOut], Any],
) -> Callable[[W], W]:
    """Decorates a function as ``synchronized`` does. If the lock is not free in time, ``busy`` answers in its place."""
    limit, kept_for = seconds(timeout, "timeout"), maybe(ttl, "ttl")

    def run(key: str, work: Callable[[Any], Any]) -> Any:
        lock = locks().lock(key, ttl=kept_for)
        # A time-out inside of the function is its own.
        try:
            # A single try leaves nothing in the store's queue, even if the process ends at once, as those of RQ do.
            guard = lock.acquire(limit) if limit else lock.try_acquire()
        except TimedOut as error:
            return busy(error)
        if guard is None:
            return busy(_not_free(key))
        with guard:
            return work(guard)

    def decorate(work: W) -> W:
        if inspect.iscoroutinefunction(work):
            raise TypeError(f"locked: {work!r} is a coroutine function; give a plain function")
        return synchronized(name, run, run, False)(work)

    return decorate
