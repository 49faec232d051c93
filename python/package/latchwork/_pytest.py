"""Fixtures of pytest for code that takes locks: ``latchwork_store``, ``latchwork_locks`` and ``latchwork_aio_locks``."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Iterator

if TYPE_CHECKING:
    from . import Locks, aio
    from .testing import Store

# The package does not depend on it: pytest imports this module.
_fixture: Any = importlib.import_module("pytest").fixture


def _store() -> "Store":
    """A store of the test's own, whose clock is paused: see :mod:`latchwork.testing`."""
    from .testing import Store

    return Store()


def _locks(latchwork_store: "Store") -> "Iterator[Locks]":
    """A connection for threads to the store of the test."""
    with latchwork_store.locks() as locks:
        yield locks


def _aio_locks(latchwork_store: "Store") -> "aio.Locks":
    """A connection for tasks to the store of the test."""
    return latchwork_store.aio_locks()


latchwork_store: Any = _fixture(name="latchwork_store")(_store)
latchwork_locks: Any = _fixture(name="latchwork_locks")(_locks)
latchwork_aio_locks: Any = _fixture(name="latchwork_aio_locks")(_aio_locks)
