"""The same API for asyncio and trio: every verb is awaited, and every lock is used with ``async with``.

>>> import asyncio
>>> from latchwork import aio
>>> async def main() -> bool:
...     async with aio.connect("mem:") as locks:
...         lock = locks.lock("stock/42", ttl=30)
...         async with lock.acquire(timeout=5) as guard:
...             return guard.ensure_held() == guard.token
>>> asyncio.run(main())
True

Cancellation at any ``await`` leaves nothing behind: an acquire that was cancelled leaves no claim in the store, and a
release that was cancelled continues in the background. It works on asyncio and uvloop, on trio, and below anyio.

``asyncio.wait_for`` on Python 3.9 to 3.11 can swallow a result when its own cancellation comes at the same moment: the
guard is then released with a ``RuntimeWarning``. Use ``acquire(timeout=...)`` in its place.
"""

from __future__ import annotations

from ._aio_default import lock, synchronized
from ._aio_elections import Election
from ._aio_locks import Lock, Locks, ReentrantLock, RWLock, connect, doctor, init, ls
from ._aio_once import Once, Run
from ._guards import AsyncGuard as Guard
from ._guards import Loss
from ._names import publish as _publish
from ._views import Leader, Outcome, Skipped

__all__ = [
    "Election", "Guard", "Leader", "Lock", "Locks", "Loss", "Once", "Outcome", "RWLock", "ReentrantLock", "Run", "Skipped",
    "connect", "doctor", "init", "lock", "ls", "synchronized",
]

_publish(__name__, [globals()[_name] for _name in __all__])
