"""Locks in Django: one connection for each process, commands that run on one host, and fences for the ORM.

.. code-block:: python

    # settings.py: what latchwork.connect() takes. Without it: LATCHWORK_STORE.
    LATCHWORK = {"URL": "redis://cache:6379", "NAMESPACE": "shop", "TTL": 30}

    from latchwork.frameworks.django import lock, once

    with lock("stock/42").acquire(timeout=5) as guard:
        ...

    @once("report", every="1d")
    def report(): ...
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, ClassVar, Optional, Union

from django.conf import settings  # type: ignore[import-untyped,import-not-found,unused-ignore]
from django.core.exceptions import (  # type: ignore[import-untyped,import-not-found,unused-ignore]
    ImproperlyConfigured,
)
from django.core.management.base import (  # type: ignore[import-untyped,import-not-found,unused-ignore]
    CommandError,
)
from django.db import (  # type: ignore[import-untyped,import-not-found,unused-ignore]
    DEFAULT_DB_ALIAS,
    connections,
    transaction,
)

from .. import Fenced, Guard, Lock, Locks, Skipped, TimedOut, connect
from .._times import Duration, seconds
from ..fence import SqlFence, Token, token_number
from . import once as _once
from . import per_process

if TYPE_CHECKING:

    class BaseCommand:
        """The parts of Django's command that are used here; it has no types."""

        handle: Callable[..., Any]

        def execute(self, *args: Any, **options: Any) -> Any: ...

else:
    from django.core.management.base import BaseCommand

__all__ = ["LockedCommand", "check_fence", "fenced_update", "lock", "locks", "once"]


def _connect() -> Locks:
    options = {name.lower(): value for name, value in getattr(settings, "LATCHWORK", {}).items()}
    try:
        return connect(**options)
    except TypeError as error:
        raise ImproperlyConfigured(f"LATCHWORK: {error}; its keys are the parameters of latchwork.connect()") from error


_locks = per_process(_connect)


def locks() -> Locks:
    """Returns the connection of this process, by the setting ``LATCHWORK``. It connects at the first call."""
    return _locks()


def lock(name: str, *, ttl: Optional[Duration] = None, fair: bool = False) -> Lock:
    """Returns a mutex, as :meth:`latchwork.Locks.lock`."""
    return locks().lock(name, ttl=ttl, fair=fair)


def once(name: str, every: Union[str, Duration], *, tz: Optional[str] = None, ttl: Optional[Duration] = None) -> Any:
    """Decorates a function, so that it runs once in each period on one of the hosts, as :func:`latchwork.frameworks.once`."""
    return _once(name, every, tz=tz, ttl=ttl, locks=locks)


class LockedCommand(BaseCommand):
    """A management command that runs on one host at a time or, with ``every``, once in each period.

    .. code-block:: python

        class Command(LockedCommand):
            every = "1d"

            def handle(self, *args, **options):
                self.guard.ensure_held()

    If the lock is held elsewhere the command ends with an error; if its period is done, without one.
    """

    #: The name of the lock. Default: that of the command.
    lock_name: ClassVar[Optional[str]] = None
    #: How long the command waits for its lock.
    lock_timeout: ClassVar[Duration] = 0
    #: The period in which it runs once: ``"1d"``, ``"1h"`` ...
    every: ClassVar[Union[None, str, Duration]] = None
    #: The time zone of days, weeks and months. Default: UTC.
    tz: ClassVar[Optional[str]] = None
    #: The hold, while ``handle`` runs.
    guard: Guard

    def execute(self, *args: Any, **options: Any) -> Any:
        """Runs the command, and ``handle`` under its lock."""
        handle = type(self).handle.__get__(self)
        vars(self)["handle"] = lambda *args, **options: self._held(lambda: handle(*args, **options))
        return super().execute(*args, **options)

    def _held(self, handle: Callable[[], Any]) -> Any:
        name = self.lock_name or type(self).__module__.rpartition(".")[2]
        if self.every is not None:
            with locks().once(name, self.every, tz=self.tz) as run:
                if isinstance(run, Skipped):
                    # Django prints it.
                    return f"skipped: {run}"
                self.guard = run
                return handle()
        try:
            guard = lock(name).acquire(seconds(self.lock_timeout, "lock_timeout"))
        except TimedOut as error:
            raise CommandError(str(error)) from error
        with guard:
            self.guard = guard
            return handle()


def check_fence(
    resource: str,
    token: Token,
    *,
    using: str = DEFAULT_DB_ALIAS,
    table: str = "fences",
    idle_limit: Optional[Duration] = 10.0,
) -> None:
    """Admits the token, as :meth:`latchwork.fence.SqlFence.check`. Call it inside of ``transaction.atomic()``, before the write.

    The table is made by a migration: ``migrations.RunSQL(SqlFence("postgresql").create_table)``.

    :raises Fenced: The holder was superseded; the transaction is rolled back.
    """
    connection = connections[using]
    if not connection.in_atomic_block:
        raise transaction.TransactionManagementError("check_fence() needs transaction.atomic(): the write belongs to it")
    with connection.cursor() as cursor:
        SqlFence(connection.vendor, table, idle_limit).check(cursor, resource, token)


def fenced_update(rows: Any, token: Token, *, column: str = "token", **values: Any) -> int:
    """Updates the rows of a ``QuerySet`` unless a larger token has written, and keeps the token in a column of theirs: a
    ``PositiveBigIntegerField``. Returns the number of rows.

    :raises Fenced: No row was changed: the holder was superseded, or there is no such row.
    """
    number = token_number(token)
    changed: int = rows.filter(**{f"{column}__lte": number}).update(**{column: number}, **values)
    if not changed:
        raise Fenced(f"token {number} has changed no row: it was superseded, or there is no such row", number)
    return changed
