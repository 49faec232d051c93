"""Jobs of RQ that run one at a time for each set of arguments.

.. code-block:: python

    @locked("account/{account}", retry=5)
    def settle(account): ...

    queue.enqueue(settle, 7)            # rq worker --with-scheduler
"""

from __future__ import annotations

from typing import Any, Callable, Optional

from rq import Retry  # type: ignore[import-untyped,import-not-found,unused-ignore]

from .. import Locks, TimedOut
from .._synchronized import W
from .._times import Duration
from . import default_locks
from . import locked as _locked

__all__ = ["locked"]

#: As often as it takes.
_ALWAYS = 2**31 - 1


def locked(
    name: str,
    *,
    timeout: Duration = 0,
    retry: Optional[int] = 1,
    ttl: Optional[Duration] = None,
    locks: Callable[[], Locks] = default_locks,
) -> Callable[[W], W]:
    """Decorates the function of a job. A parameter ``guard`` is given the guard.

    :param name: The name of the lock, with the parameters of the function.
    :param timeout: How long a worker waits for the lock.
    :param retry: The seconds until the job is tried again if the lock is held, as often as it takes; the worker needs
        ``--with-scheduler``. With None, the job fails with ``TimedOut``.
    :param locks: Returns the connection. Default: that of the default store.
    """

    def busy(error: TimedOut) -> Any:
        if retry is None:
            raise error
        return Retry(max=_ALWAYS, interval=retry)

    return _locked(name, timeout, ttl, locks, busy)
