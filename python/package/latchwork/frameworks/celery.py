"""Tasks of Celery that run one at a time for each set of arguments.

.. code-block:: python

    @app.task(base=LockedTask, lock_name="account/{account}")
    def settle(account): ...
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, ClassVar, Optional

from celery.exceptions import Retry  # type: ignore[import-untyped,import-not-found,unused-ignore]

from .. import Guard, Locks, TimedOut
from .._synchronized import Named
from .._times import Duration, maybe, seconds
from . import default_locks

if TYPE_CHECKING:

    class Task:
        """The parts of Celery's task that are used here; it has no types."""

        name: str
        request: Any
        run: Callable[..., Any]
        signature_from_request: Callable[..., Any]

        def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

else:
    from celery import Task

__all__ = ["LockedTask"]


class LockedTask(Task):
    """A base class for tasks. A worker acquires the lock when it begins the task; nothing is held while it is queued.

    If the lock is held, the task goes back into the queue for ``lock_retry`` seconds, as often as it takes, and leaves the
    worker to others. These rounds are not counted as retries of the task. A task that is called directly, or eagerly, raises
    ``TimedOut``.
    """

    abstract = True
    #: The name of the lock, with the parameters of the task.
    lock_name: str = ""
    #: How long a worker waits for the lock.
    lock_timeout: Duration = 0
    #: The seconds until the next attempt. With None, a busy lock fails the task with ``TimedOut``.
    lock_retry: Optional[float] = 1.0
    #: How long the store keeps the lock without a renewal.
    lock_ttl: Optional[Duration] = None
    #: Returns the connection. Default: that of the default store.
    locks: ClassVar[Optional[Callable[[], Locks]]] = None

    @property
    def guard(self) -> Optional[Guard]:
        """The hold, while the task runs."""
        # Threads share the task and have requests of their own.
        guard: Optional[Guard] = getattr(self.request, "guard", None)
        return guard

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the task under its lock."""
        name = Named(self.lock_name or self.name, self.run).of(args, kwargs)
        locks = type(self).locks or default_locks
        lock = locks().lock(name, ttl=maybe(self.lock_ttl, "lock_ttl"))
        request = self.request
        try:
            guard = lock.acquire(seconds(self.lock_timeout, "lock_timeout"))
        except TimedOut as error:
            if self.lock_retry is None or request.called_directly or request.is_eager:
                raise
            again = self.signature_from_request(request, args, kwargs, countdown=self.lock_retry, retries=request.retries)
            again.apply_async()
            raise Retry(str(error), error, when=self.lock_retry) from error
        with guard:
            request.guard = guard
            try:
                return super().__call__(*args, **kwargs)
            finally:
                request.guard = None
