"""A store for tests of code that takes locks: the test takes locks away, cuts the store off, and moves the clock.

Everything above the store is the real library: the queue, the renewals, the releases in the background. The clock is
paused: no lock expires, and no wait ends, unless the test moves it.

>>> import latchwork
>>> from latchwork.testing import Store
>>> store = Store()
>>> locks = store.locks()
>>> guard = locks.lock("stock").acquire()
>>> store.advance(3600)                     # an hour of renewals
>>> guard.state
'held'
>>> store.lose("stock")
>>> guard.lost.reason
'taken'
>>> guard._forget()

With pytest, the package has the fixtures ``latchwork_store``, ``latchwork_locks`` and ``latchwork_aio_locks``.
"""

from __future__ import annotations

import contextlib
import threading
from typing import Iterator, Optional

from . import Locks, _configured, _native
from . import aio as _aio
from ._factory import text
from ._guards import Guard
from ._times import Duration, seconds

__all__ = ["Store"]


class Store:
    """An empty store in memory, whose clock is paused. Each connection is another client of it.

    Code under test gets its connection from :meth:`locks` or :meth:`aio_locks`, in place of ``latchwork.connect()``.
    """

    def __init__(self) -> None:
        self._native = _native.TestStore()

    def _client(self, namespace: Optional[str]) -> _native.Manager:
        return _configured(self._native.manager(), namespace, None, None, None, None, None, None)

    def locks(self, namespace: Optional[str] = None) -> Locks:
        """Returns a connection for threads, with a ttl of 30 s."""
        return Locks(self._client(namespace), namespace or "")

    def aio_locks(self, namespace: Optional[str] = None) -> _aio.Locks:
        """Returns a connection for tasks, with a ttl of 30 s."""
        return _aio.Locks(self._client(namespace), namespace or "")

    @property
    def elapsed(self) -> float:
        """The seconds by which the clock has moved."""
        return self._native.elapsed

    def advance(self, by: Duration) -> None:
        """Moves the clock, with each renewal, retry and timeout on the way."""
        self._native.advance(seconds(by, "by")).wait()

    def suspend(self, by: Duration) -> None:
        """Moves the clock as if the process had been paused: nothing is renewed on the way, so a hold with a shorter ttl is
        lost."""
        self._native.suspend(seconds(by, "by")).wait()

    def lose(self, key: str) -> None:
        """Takes a lock away: each of its guards is lost, with the reason ``"taken"``.

        :param key: The key, with its namespace.
        """
        self._native.take_away(text(key, "key")).wait()

    def hold(self, name: str, holder: str = "another client", namespace: Optional[str] = None) -> Guard:
        """Holds a lock as another client does: other calls find it held, and time out."""
        return self.locks(namespace).lock(name, holder=holder).acquire(timeout=0)

    @contextlib.contextmanager
    def unreachable(self) -> Iterator[None]:
        """While the block runs, the store does not answer. Holds last until their validity ends, as the clock moves."""
        self._native.set_reachable(False)
        try:
            yield
        finally:
            self._native.set_reachable(True)

    @contextlib.contextmanager
    def in_doubt(self) -> Iterator[None]:
        """While the block runs, each hold is in doubt, as after a pause of the machine: ``ensure_held()`` raises
        :class:`Suspect`. The store does not answer meanwhile. At the end it confirms the holds, and the clock has moved
        by 10 s."""
        with self.unreachable():
            self._native.pause_machine(2.0)
            yield
        self.advance(10)

    @contextlib.contextmanager
    def running_clock(self, step: Duration = 0.25) -> Iterator[None]:
        """While the block runs, the clock runs much faster than the real one, so that timeouts of minutes end at once.

        >>> import latchwork
        >>> from latchwork.testing import Store
        >>> store = Store()
        >>> with store.hold("stock"), store.running_clock():
        ...     try:
        ...         store.locks().lock("stock").acquire(timeout=60)
        ...     except latchwork.TimedOut as error:
        ...         "another client" in str(error)
        True
        """
        ended = threading.Event()
        by = seconds(step, "step")

        def runs() -> None:
            while not ended.wait(0.0005):
                self._native.advance(by).wait()

        clock = threading.Thread(target=runs, name="latchwork-clock", daemon=True)
        clock.start()
        try:
            yield
        finally:
            ended.set()
            clock.join()
