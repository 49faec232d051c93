"""Tasks of Airflow that run one at a time, across DAGs and deployments.

.. code-block:: python

    @task(retries=10)
    @locked("warehouse/{table}")
    def load(table): ...

    class LockedBash(Locked, BashOperator):
        lock_name = "warehouse/{ds}"
"""

from __future__ import annotations

from typing import Any, Callable, ClassVar, Mapping, Optional

from .. import Guard, Locks, TimedOut
from .._synchronized import W
from .._times import Duration, maybe, seconds
from . import default_locks
from . import locked as _locked

__all__ = ["Locked", "locked"]


def _busy(error: TimedOut, skip: bool) -> Any:
    if not skip:
        raise error
    from airflow.exceptions import (  # type: ignore[import-untyped,import-not-found,unused-ignore]
        AirflowSkipException,
    )

    raise AirflowSkipException(str(error)) from error


def locked(
    name: str,
    *,
    timeout: Duration = 0,
    skip: bool = False,
    ttl: Optional[Duration] = None,
    locks: Callable[[], Locks] = default_locks,
) -> Callable[[W], W]:
    """Decorates the function of a task, below ``@task``.

    :param name: The name of the lock, with the parameters of the function.
    :param timeout: How long the task waits for the lock. After that it fails, and Airflow retries it as its ``retries`` say.
    :param skip: Skips the task in place of failing it.
    :param locks: Returns the connection. Default: that of the default store.
    """
    return _locked(name, timeout, ttl, locks, lambda error: _busy(error, skip))


class Locked:
    """To stand before an operator in the bases of a class: ``execute`` then runs under a lock."""

    #: The name of the lock, with values of the task's context: ``"{ds}"``, ``"{params[table]}"``.
    lock_name: str = ""
    #: How long the task waits for the lock.
    lock_timeout: Duration = 0
    #: Whether a task is skipped if the lock is held. Otherwise it fails, and Airflow retries it.
    lock_skip: bool = False
    #: How long the store keeps the lock without a renewal.
    lock_ttl: Optional[Duration] = None
    #: Returns the connection. Default: that of the default store.
    locks: ClassVar[Optional[Callable[[], Locks]]] = None
    #: The hold, while ``execute`` runs.
    guard: Optional[Guard] = None

    def execute(self, context: Mapping[str, Any]) -> Any:
        """Runs the operator under its lock."""
        name = self.lock_name.format_map(context)
        locks = type(self).locks or default_locks
        lock = locks().lock(name, ttl=maybe(self.lock_ttl, "lock_ttl"))
        try:
            guard = lock.acquire(seconds(self.lock_timeout, "lock_timeout"))
        except TimedOut as error:
            return _busy(error, self.lock_skip)
        with guard:
            self.guard = guard
            try:
                return super().execute(context)  # type: ignore[misc]
            finally:
                self.guard = None
