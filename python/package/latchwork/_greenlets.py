"""gevent and eventlet: while a greenlet waits for a lock, the others of its thread run."""

from __future__ import annotations

import sys
import weakref
from typing import TYPE_CHECKING, Any, Callable, Optional

_numbers: "weakref.WeakKeyDictionary[Any, int]" = weakref.WeakKeyDictionary()
_last = 0

_Wait = Callable[[int, Optional[float]], None]


def _gevent() -> Any:
    """The module, if it has replaced the threads of this program by greenlets."""
    monkey: Any = sys.modules.get("gevent.monkey")
    if monkey is None or not monkey.is_module_patched("threading"):
        return None
    return sys.modules["gevent"]


def _eventlet() -> Any:
    """The same of eventlet."""
    patcher: Any = sys.modules.get("eventlet.patcher")
    if patcher is None or not patcher.is_monkey_patched("thread"):
        return None
    return sys.modules["eventlet"]


def waiting() -> Optional[_Wait]:
    """What waits for a descriptor. ``None`` where there are no greenlets, as in a thread of a pool."""
    if _gevent() is not None:
        hub_local: Any = sys.modules.get("gevent._hub_local")
        if hub_local is not None and hub_local.get_hub_if_exists() is not None:
            return _wait
    if _eventlet() is not None:
        hubs: Any = sys.modules.get("eventlet.hubs")
        hub = None if hubs is None else getattr(hubs._threadlocal, "hub", None)
        # Timers run in the greenlet of the hub itself, which cannot wait.
        if hub is not None and hub.greenlet is not _eventlet().getcurrent():
            return _trampoline
    return None


class _Late(Exception):
    """The time has passed."""


def _wait(descriptor: int, seconds: Optional[float]) -> None:
    """Runs the other greenlets until the descriptor can be read, or the time has passed."""
    if TYPE_CHECKING:
        wait_read: Any = None
    else:
        from gevent.socket import wait_read
    try:
        wait_read(descriptor, timeout=seconds, timeout_exc=_Late())
    except _Late:
        pass


def _trampoline(descriptor: int, seconds: Optional[float]) -> None:
    """The same by eventlet."""
    hubs: Any = sys.modules["eventlet.hubs"]
    try:
        hubs.trampoline(descriptor, read=True, timeout=seconds, timeout_exc=_Late)
    except _Late:
        pass


def owner() -> Optional[str]:
    """The owner of a reentrant lock that this greenlet is; ``None`` for a thread."""
    global _last
    greenlets = _gevent() or _eventlet()
    if greenlets is None:
        return None
    greenlet = greenlets.getcurrent()
    number = _numbers.get(greenlet)
    if number is None:
        _last += 1
        number = _numbers[greenlet] = _last
    return f"greenlet {number}"
