"""Elections for threads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Iterator, Optional, Tuple, TypeVar

from . import _errors, _native
from ._contexts import Named
from ._guards import Guard
from ._times import Duration, maybe

if TYPE_CHECKING:
    from ._views import Leader

T = TypeVar("T")


def leader_of(said: Optional[Tuple[str, int]]) -> Optional[Leader]:
    if said is None:
        return None
    from ._views import Leader

    return Leader(*said)


class Election(Named[_native.Lock]):
    """One of the candidates leads. A leadership is a guard whose token is the number of the term.

    >>> import latchwork
    >>> with latchwork.connect("mem:") as locks:
    ...     election = locks.election("scheduler", candidate="10.0.0.7:8080")
    ...     with election.campaign(timeout=5) as leadership:
    ...         if (leader := election.leader()):
    ...             print(leader.candidate)
    10.0.0.7:8080
    """

    __slots__ = ()

    def campaign(self, timeout: Optional[Duration] = None) -> Guard:
        """Waits until this candidate leads.

        :raises TimedOut: Another candidate leads after ``timeout``.
        """
        guard: Guard = self._native.acquire(maybe(timeout, "timeout")).giving(Guard).wait()
        return guard

    def try_campaign(self) -> Optional[Guard]:
        """Leads if nobody else does, and returns ``None`` otherwise."""
        guard: Optional[Guard] = self._native.try_acquire().giving(Guard).wait()
        return guard

    def lead(self, work: Callable[[Guard], T]) -> T:
        """Waits until this candidate leads, calls ``work(leadership)``, resigns, and returns its result.

        A thread cannot be stopped from outside: ``work`` has to check ``leadership.ensure_held()`` before each step.
        If that raises :class:`Lost`, the candidate campaigns again.
        """
        from ._work import blocking, finished

        blocking(work, "lead")
        while True:
            leadership = self.campaign()
            try:
                result = work(leadership)
                finished(result, work, "lead")
            except _errors.Lost:
                if leadership.state != "lost":
                    leadership.release()
                    raise
                leadership._forget()
                continue
            except BaseException as raised:
                leadership.__exit__(type(raised), raised, None)
                raise
            leadership.release()
            return result

    def leader(self) -> Optional[Leader]:
        """Returns the current leader, or ``None``."""
        return leader_of(self._native.leader().wait())

    def observe(self) -> Iterator[Optional[Leader]]:
        """Yields the current leader and every change; ``None`` while there is no leader."""
        observing = self._native.observe()
        while True:
            said: Any = observing.next().wait()
            if said is ...:
                return
            yield leader_of(said)
