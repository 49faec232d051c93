"""What happens to locks in the background: logged by the logger ``latchwork``, and told to the program's callbacks."""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref
from typing import Any, Callable, Dict, List, Optional, Tuple

from . import _errors, _native

# `logging` is imported by the thread, for what there is to report: it takes a tenth of the package's own import.

#: A wait is reported after it, and again each time that it has doubled.
LONG_WAIT = 10.0

_LEVELS = {"lost": "ERROR", "suspect": "WARNING", "unreachable": "WARNING", "release_failed": "WARNING"}


class Callbacks:
    """What the program wants to be called for the losses of one connection."""

    __slots__ = ("called", "__weakref__")

    def __init__(self) -> None:
        self.called: List[Callable[[_errors.Lost], Any]] = []


_callbacks: "weakref.WeakValueDictionary[int, Callbacks]" = weakref.WeakValueDictionary()
_last = 0
_news: Optional[Tuple[int, _native.News]] = None
_reported: Dict[Tuple[int, str], float] = {}


def observed(native: _native.Manager) -> _native.Manager:
    """The same connection, whose events are taken."""
    global _last, _news
    if _news is None or _news[0] != os.getpid():
        # A thread of the parent does not run in a child.
        news = _native.News()
        threading.Thread(target=_take, args=(news,), name="latchwork-events", daemon=True).start()
        # Not before: if no thread can be started now, the next connection starts it.
        _news = os.getpid(), news
    _last += 1
    return native.observed(_news[1], _last)


def callbacks(native: _native.Manager) -> Callbacks:
    """The callbacks of a connection, which those share that differ in their namespace alone."""
    return _callbacks.setdefault(native.number, Callbacks())


def end() -> None:
    """Ends the thread: the process ends."""
    global _news
    if _news is not None and _news[0] == os.getpid():
        _news[1].end()
        _news = None


def _take(news: _native.News) -> None:
    checked = time.monotonic()
    while True:
        said: Any = news.next().wait(LONG_WAIT)
        if said is ...:
            return
        if said is not None:
            _surely(_log, *said)
            _surely(_call, *said)
        if time.monotonic() - checked >= LONG_WAIT:
            checked = time.monotonic()
            _surely(_report_waits, news)


def _surely(do: Callable[..., None], *args: Any) -> None:
    """What the program's logging or its callbacks raise must not end the thread."""
    try:
        do(*args)
    except BaseException:
        threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread())))


def _logger() -> Any:
    import logging

    return logging.getLogger("latchwork")


def _report_waits(news: _native.News) -> None:
    waits = {(number, key): (waited, holder) for number, key, waited, holder in news.waits(LONG_WAIT)}
    for ended in set(_reported) - set(waits):
        del _reported[ended]
    for wait, (waited, holder) in waits.items():
        if waited >= 2 * _reported.get(wait, 0.0):
            _reported[wait] = waited
            held = "" if holder is None else f", held by {holder}"
            _logger().warning("%s: waiting for %.0f s%s; see `latchwork show` and Locks.show()", wait[1], waited, held)
    dropped = news.dropped()
    if dropped:
        _logger().warning("%d events were not logged: there were too many", dropped)


def _log(number: int, kind: str, key: str, token: Optional[int], text: str, reason: Optional[str]) -> None:
    more = {"latchwork_event": kind, "latchwork_key": key, "latchwork_token": token}
    of = "" if token is None else f" (token {token})"
    import logging

    level = getattr(logging, _LEVELS.get(kind, "INFO"))
    _logger().log(level, "%s%s: %s: %s", key, of, kind.replace("_", " "), text, extra=more)


def _call(number: int, kind: str, key: str, token: Optional[int], text: str, reason: Optional[str]) -> None:
    wanted = _callbacks.get(number)
    if kind != "lost" or wanted is None:
        return
    hint = "stop working: another holder may have the lock"
    for callback in list(wanted.called):
        error = _errors.from_native("lost", f"{text} (key {key!r}); {hint}", text, hint, key, None, reason)
        if isinstance(error, _errors.Lost):
            error.token = token
            _surely(_call_one, callback, error)


def _call_one(callback: Callable[[_errors.Lost], Any], lost: _errors.Lost) -> None:
    try:
        callback(lost)
    except BaseException:
        _logger().exception("%s: the callback for its loss raised", lost.key)
