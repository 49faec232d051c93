"""trio: its tasks poll an operation when its descriptor can be read. This module is imported only beside trio."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Coroutine, Generator, Optional, TypeVar

from . import _native

if TYPE_CHECKING:
    from ._guards import AsyncGuard

T = TypeVar("T")


def trio() -> Any:
    """The module, if its loop runs the caller; ``None`` in a task of asyncio, also below trio-asyncio."""
    module: Any = sys.modules.get("trio")
    sniffio: Any = sys.modules.get("sniffio")
    if module is None or sniffio is None:
        return None
    try:
        return module if sniffio.current_async_library() == "trio" else None
    except sniffio.AsyncLibraryNotFoundError:
        return None


def awaited(operation: _native.Operation) -> Optional[Generator[Any, None, Any]]:
    """What ``await operation`` runs in a task of trio; ``None`` elsewhere."""
    running = trio()
    return None if running is None else _awaited(operation, running.lowlevel).__await__()


async def _awaited(operation: _native.Operation, lowlevel: Any) -> Any:
    polled = operation.polled()
    try:
        if polled.acquires:
            await lowlevel.checkpoint_if_cancelled()
        done = polled.poll()
        if done is not None:
            await lowlevel.cancel_shielded_checkpoint()
        while done is None:
            await lowlevel.wait_readable(polled.fileno())
            done = polled.poll()
        return done[0]
    finally:
        polled.close()


async def run_while(running: Any, work: Coroutine[Any, Any, T], guard: "AsyncGuard") -> T:
    """Runs a coroutine in this task, and cancels it if the lock is lost."""
    is_lost = False
    raised: Optional[BaseException] = None
    result: Any = None

    async def watch() -> None:
        nonlocal is_lost
        if await guard.lost is not None:
            is_lost = True
            nursery.cancel_scope.cancel()

    async with running.open_nursery() as nursery:
        nursery.start_soon(watch)
        try:
            result = await work
        except BaseException as error:
            # Not raised here: the nursery would put it into a group.
            raised = error
        nursery.cancel_scope.cancel()
    if raised is None:
        kept: T = result
        return kept
    if is_lost and isinstance(raised, running.Cancelled):
        guard.ensure_held()
    raise raised
