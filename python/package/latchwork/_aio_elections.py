"""Elections for tasks."""

from __future__ import annotations

import inspect
from typing import Any, AsyncIterator, Callable, Coroutine, Optional, TypeVar

from . import _errors, _native
from ._contexts import Named
from ._elections import leader_of
from ._guards import AsyncGuard
from ._loops import Acquiring
from ._times import Duration, maybe
from ._views import Leader
from ._work import awaited

T = TypeVar("T")


class Election(Named[_native.Lock]):
    """One of the candidates leads. A leadership is a guard whose token is the number of the term.

    >>> import asyncio, latchwork.aio
    >>> async def main() -> None:
    ...     async with latchwork.aio.connect("mem:") as locks:
    ...         election = locks.election("scheduler", candidate="10.0.0.7:8080")
    ...         async with election.campaign(timeout=5) as leadership:
    ...             async for leader in election.observe():
    ...                 if leader:
    ...                     print(leader.candidate, leader.term == leadership.token)
    ...                 break
    >>> asyncio.run(main())
    10.0.0.7:8080 True
    """

    __slots__ = ()

    _module = "aio."

    def campaign(self, timeout: Optional[Duration] = None) -> Acquiring[AsyncGuard]:
        """Waits until this candidate leads.

        :raises TimedOut: Another candidate leads after ``timeout``.
        """
        return Acquiring(self._native.acquire(maybe(timeout, "timeout")).giving(AsyncGuard))

    def try_campaign(self) -> Coroutine[Any, Any, Optional[AsyncGuard]]:
        """Leads if nobody else does, and returns ``None`` otherwise."""
        return self._native.try_acquire().giving(AsyncGuard)

    async def lead(self, work: Callable[[AsyncGuard], Coroutine[Any, Any, T]]) -> T:
        """Waits until this candidate leads, runs ``work(leadership)``, resigns, and returns its result.

        If the leadership is lost, ``work`` is cancelled, and the candidate campaigns again.
        """
        awaited(work, "lead")
        while True:
            leadership = await self.campaign()
            async with leadership:
                try:
                    value: Any = work(leadership)
                    # A plain function has run by now.
                    is_awaited: bool = inspect.isawaitable(value)
                    result: T = await leadership.run(value) if is_awaited else value
                    return result
                except _errors.Lost:
                    if leadership.state != "lost":
                        raise
                    leadership._forget()

    async def leader(self) -> Optional[Leader]:
        """Returns the current leader, or ``None``."""
        return leader_of(await self._native.leader())

    async def observe(self) -> AsyncIterator[Optional[Leader]]:
        """Yields the current leader and every change; ``None`` while there is no leader."""
        observing = self._native.observe()
        while True:
            said: Any = await observing.next()
            if said is ...:
                return
            yield leader_of(said)
