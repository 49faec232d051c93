"""gevent: while a greenlet waits for a lock, the others of its thread run."""

from __future__ import annotations

import socket
import sys
import weakref
from typing import TYPE_CHECKING, Any, Callable, Optional

_numbers: "weakref.WeakKeyDictionary[Any, int]" = weakref.WeakKeyDictionary()
_last = 0


def _gevent() -> Any:
    """The module, if it has replaced the threads of this program by greenlets."""
    monkey: Any = sys.modules.get("gevent.monkey")
    if monkey is None or not monkey.is_module_patched("threading"):
        return None
    return sys.modules["gevent"]


def waiting() -> Optional[Callable[[int, Optional[float]], None]]:
    """What waits for a descriptor. ``None`` where there are no greenlets, as in a thread of a pool."""
    gevent = _gevent()
    if gevent is None:
        return None
    hub_local: Any = sys.modules.get("gevent._hub_local")
    if hub_local is None or hub_local.get_hub_if_exists() is None:
        return None
    return _wait


def _wait(descriptor: int, seconds: Optional[float]) -> None:
    """Runs the other greenlets until the descriptor can be read, or the time has passed."""
    if TYPE_CHECKING:
        wait_read: Any = None
    else:
        from gevent.socket import wait_read
    try:
        wait_read(descriptor, timeout=seconds)
    except socket.timeout:
        pass


def owner() -> Optional[str]:
    """The owner of a reentrant lock that this greenlet is; ``None`` for a thread."""
    global _last
    gevent = _gevent()
    if gevent is None:
        return None
    greenlet = gevent.getcurrent()
    number = _numbers.get(greenlet)
    if number is None:
        _last += 1
        number = _numbers[greenlet] = _last
    return f"greenlet {number}"
