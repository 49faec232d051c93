"""A distributed lock that tells you whether you still hold it, with a token that the resource can check.

>>> import latchwork
>>> with latchwork.connect("mem:") as locks:     # or redis://host, valkey://host, etcd://a,b,c, postgres://user@host/db ...
...     with locks.lock("stock/42", ttl=30).acquire(timeout=5) as guard:
...         token = guard.ensure_held()          # before each step that needs the lock
...         token == guard.token                 # pass it to the resource, which refuses smaller ones
True

What differs from ``threading.Lock`` and ``redis.lock.Lock``:

- A lock can be **lost**: the store may have given it to another client while this process was paused or cut off.
  ``guard.ensure_held()`` tells, ``guard.lost`` notifies, and a release after a loss raises :class:`Lost`.
- It is renewed in the background for as long as the guard lives. ``ttl`` is not a limit of the hold.
- It is not reentrant: see :meth:`Locks.reentrant`.
- ``acquire`` returns a guard, and raises :class:`TimedOut`. ``try_acquire`` returns ``None`` if the lock is not free.

For asyncio and trio see :mod:`latchwork.aio`.
"""

from __future__ import annotations

import atexit as _atexit
import os as _os
import sys as _sys
import threading as _threading
import typing as _typing
from typing import Any as _Any
from typing import Callable as _Callable
from typing import Optional as _Optional
from typing import Union as _Union

from . import _events, _native
from ._default import lock, synchronized
from ._elections import Election
from ._errors import (
    Busy,
    Closed,
    Corrupt,
    Denied,
    Fenced,
    Forked,
    Invalid,
    LatchworkError,
    Lost,
    Mismatch,
    NotHeld,
    Released,
    Suspect,
    TimedOut,
    Unreachable,
    Unsupported,
    UpgradeConflict,
)
from ._errors import invalid as _invalid
from ._factory import text as _text
from ._guards import AsyncGuard, Guard, Loss
from ._locks import Lock, Locks, ReentrantLock, RWLock
from ._names import publish as _publish
from ._once import Once, Run
from ._times import Duration
from ._times import seconds as _seconds

if _typing.TYPE_CHECKING:
    from ._clients import Client as _Client
    from ._clients import ClusterClient as _ClusterClient
    from ._views import Finding, ForceReleased, Leader, LockView, Outcome, Party, Prepared, Report, Resized, Skipped

    _Source = _Union[None, str, _os.PathLike[str], _Callable[[], str], _Client, _ClusterClient]
else:
    _Source = _Any

    def __getattr__(name):
        # Those of `_views`, at their first use.
        if name in __all__:
            from . import _views

            globals()[name] = found = getattr(_views, name)
            return found
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__():
        return sorted({*globals(), *__all__})


_native.refuse_subinterpreters()
_native.import_errors()
_os.register_at_fork(after_in_child=_native.after_fork)

__version__: str = _native.VERSION

__all__ = [
    "AsyncGuard", "Busy", "Closed", "Corrupt", "Denied", "Duration", "Election", "Fenced", "Finding", "ForceReleased",
    "Forked", "Guard", "Invalid", "LatchworkError", "Leader", "Lock", "LockView", "Locks", "Loss", "Lost", "Mismatch",
    "NotHeld", "Once", "Outcome", "Party", "Prepared", "RWLock", "ReentrantLock", "Released", "Report", "Resized", "Run", "Skipped",
    "Suspect", "TimedOut", "Unreachable", "Unsupported", "UpgradeConflict", "connect", "default_store", "doctor", "init", "lock", "ls",
    "synchronized",
]


def _script() -> str:
    """The script of this process, for people."""
    main = _sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    if spec is not None and getattr(spec, "name", None) not in (None, "__main__"):
        name: str = spec.name
        return f"python -m {name[:-9] if name.endswith('.__main__') else name}"
    path = getattr(main, "__file__", None) or (_sys.argv[0] if _sys.argv and _sys.argv[0] not in ("", "-c") else None)
    return _os.path.basename(path) if path else "python"


def _configured(
    native: _native.Manager,
    namespace: _Optional[str],
    ttl: _Optional[Duration],
    holder: _Optional[str],
    max_hold: _Optional[Duration],
    lock_delay: _Optional[Duration],
    op_timeout: _Optional[Duration],
    renew_every: _Optional[Duration],
) -> _native.Manager:
    if holder is None:
        holder = f"{_os.uname().nodename} {_native.this_process()} ({_script()})"
    native = native.set_text("holder", _text(holder, "holder"))
    if namespace is not None:
        native = native.set_text("namespace", _text(namespace, "namespace"))
    _close_with_multiprocessing()
    for name, value in (
        ("ttl", ttl), ("max_hold", max_hold), ("lock_delay", lock_delay), ("op_timeout", op_timeout),
        ("renew_every", renew_every),
    ):
        if value is not None:
            native = native.set_seconds(name, _seconds(value, name))
    return _events.observed(native)


def connect(
    url: "_Source" = None,
    *,
    store_file: "_Union[None, str, _os.PathLike[str]]" = None,
    store_command: _Optional[str] = None,
    namespace: _Optional[str] = None,
    ttl: _Optional[Duration] = None,
    holder: _Optional[str] = None,
    max_hold: _Optional[Duration] = None,
    lock_delay: _Optional[Duration] = None,
    op_timeout: _Optional[Duration] = None,
    renew_every: _Optional[Duration] = None,
) -> Locks:
    """Connects to a store, and returns what hands out locks. Durations are seconds or timedeltas.

    :param url: ``mem:`` (this process), ``file:///path`` (this machine), ``redis://host``, ``valkey://host``,
        ``redlock://a,b,c``, ``etcd://a,b,c``, ``zk://a,b,c`` or ``postgres://user@host/db``. Default: :func:`default_store`.
        A path (``pathlib.Path``) is a folder for a store on files. A function that returns an address is called again,
        in a thread, when the store refuses the login. A client of redis-py or valkey-py, also of Sentinels or of a
        Cluster, is asked for its address, its login and its certificates: Latchwork has a connection of its own.
    :param store_file: A file with the address in its only line, in place of ``url``. It is read again when the store
        refuses the login.
    :param store_command: A command that prints the address, in place of ``url``. ``sh -c`` runs it, and again when the
        store refuses the login. It must end within 10 s.
    :param namespace: Puts all keys into a namespace: ``namespace:name``.
    :param ttl: How long the store keeps a lock without a renewal.
    :param holder: What others see of the holder. Default: host, process and script.
    :param op_timeout: The time limit of one request to the store.

    Connect after a fork, not before it: a forked child cannot use the connection of its parent, and every call raises
    :class:`Forked` there.
    """
    native = _connecting(url, store_file, store_command).wait()
    configured = _configured(native, namespace, ttl, holder, max_hold, lock_delay, op_timeout, renew_every)
    return Locks(configured, namespace or "")


def _connecting(
    url: "_Source",
    store_file: "_Union[None, str, _os.PathLike[str]]",
    store_command: _Optional[str],
) -> _native.Operation:
    if [url, store_file, store_command].count(None) < 2:
        raise _invalid("store", "give one of url, store_file and store_command")
    if store_file is not None:
        return _native.connect_from(_os.fsdecode(store_file), None, None)
    if store_command is not None:
        return _native.connect_from(None, _text(store_command, "store_command"), None)
    if url is None or isinstance(url, (str, _os.PathLike)):
        return _native.connect(_address(url))
    if callable(url):
        return _native.connect_from(None, None, url)
    from ._clients import connecting

    return connecting(url)


def _address(url: "_Union[None, str, _os.PathLike[str]]") -> str:
    if isinstance(url, _os.PathLike):
        return _text(_os.path.abspath(_os.fsdecode(url)), "store")
    return default_store() if url is None else _text(url, "store")


def default_store() -> str:
    """Returns the store to use if none is named: ``LATCHWORK_STORE``, or a directory of the user.

    A variable that is set and empty raises :class:`Invalid`: the default would be another store.

    >>> import os, latchwork
    >>> os.environ["LATCHWORK_STORE"] = "mem:"
    >>> latchwork.default_store()
    'mem:'
    """
    address = _os.environ.get("LATCHWORK_STORE")
    if address is None:
        return _native.default_store()
    if not address.strip():
        raise _invalid("LATCHWORK_STORE", "it is set, and empty; set it to an address, or unset it")
    return address.strip()


def doctor(url: _Optional[str] = None) -> Report:
    """Reports whether a store is fit for locks.

    >>> import latchwork
    >>> latchwork.doctor("mem:").is_fit
    True
    """
    from ._views import Report

    return Report.of(_native.doctor(_address(url)).wait())


def init(url: _Optional[str] = None) -> Prepared:
    """Prepares a store for its first locks: on PostgreSQL, creates the tables. Most stores need nothing.

    >>> import latchwork
    >>> latchwork.init("mem:").steps
    ()
    """
    from ._views import Prepared

    return Prepared.of(_native.init(_address(url)).wait())


def ls(prefix: str = "", url: _Optional[str] = None) -> "list[LockView]":
    """Lists the locks of a store. With a connection, use :meth:`Locks.ls`."""
    with connect(url) as locks:
        return locks.ls(prefix)


def _close_all() -> None:
    _events.end()
    _native.close_all()


def _close_in_child() -> None:
    # As Python does next, and at the end of other processes before: threads that are no daemons end their work first.
    shutdown: _Any = getattr(_threading, "_shutdown", None)
    try:
        if shutdown is not None:
            shutdown()
    finally:
        # Also after Ctrl-C, which ends the wait for them.
        _close_all()


_hooked: _Optional[int] = None


def _close_with_multiprocessing() -> None:
    """Processes of ``multiprocessing`` may end without the hooks of ``atexit``; they have hooks of their own."""
    global _hooked
    process = _sys.modules.get("multiprocessing.process")
    if process is None or process.parent_process() is None or _hooked == _os.getpid():
        return
    from multiprocessing import util

    # The last one: the program's own hooks may still use their locks.
    util.Finalize(None, _close_in_child, exitpriority=-100)
    _hooked = _os.getpid()


_publish(__name__, [globals()[_name] for _name in __all__ if _name in globals()])

# One hook for all connections of the process. It runs before the interpreter ends, so waiters are refused first and
# then every lock is released: those of guards in globals and in frames, too.
_atexit.register(_close_all)
