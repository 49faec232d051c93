"""Event loops: the bridge of each, and what needs asyncio. It is imported at the first use: programs without tasks do
without it."""

from __future__ import annotations

import contextlib
import sys
import threading
import warnings
import weakref
from types import TracebackType
from typing import TYPE_CHECKING, Any, Callable, Coroutine, Generator, Optional, Type, TypeVar

from . import _errors, _native
from ._places import level

if TYPE_CHECKING:
    import asyncio

    from ._guards import AsyncGuard, Loss

T = TypeVar("T")
_A = TypeVar("_A", bound="AsyncGuard")


class _Local(threading.local):
    #: The loop that ran last on this thread.
    event_loop: Optional[asyncio.AbstractEventLoop] = None


_local = _Local()
# Weak on both sides: a bridge knows its loop, and the loop keeps it for as long as it watches it.
_bridges: "weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, weakref.ref[_native.Bridge]]" = (
    weakref.WeakKeyDictionary()
)


def bridge() -> _native.Bridge:
    """Returns the bridge of the running loop. The native half asks once for each loop that runs on a thread."""
    import asyncio

    try:
        event_loop = asyncio.get_running_loop()
    except RuntimeError:
        raise _no_loop() from None
    _local.event_loop = event_loop
    known = _bridges.get(event_loop)
    found = None if known is None else known()
    return _new(event_loop) if found is None else found


def _new(event_loop: asyncio.AbstractEventLoop) -> _native.Bridge:
    _end_closed()
    made = _native.Bridge(event_loop)
    try:
        event_loop.add_reader(made.fileno(), made.on_ready)
    except NotImplementedError:
        error = _errors.Unsupported(
            f"{type(event_loop).__name__} has no add_reader(); run Latchwork on a selector event loop or on uvloop"
        )
        raise error from None
    _bridges[event_loop] = weakref.ref(made)
    return made


def _end_closed() -> None:
    """Ends the bridges of loops that are closed: what they watched is free for the next loop, and their tasks can be
    collected."""
    import asyncio

    for reference in _bridges.keyrefs():
        event_loop = reference()
        if event_loop is None or not event_loop.is_closed():
            continue
        known = _bridges.pop(event_loop, None)
        ended = None if known is None else known()
        if ended is None:
            continue
        ended.close()
        for task in asyncio.all_tasks(event_loop):
            waiter = getattr(task, "_fut_waiter", None)
            if isinstance(waiter, _native.Waiter):
                waiter.forget()


_FORKED = "this process was forked inside of a running event loop, which is its parent's"
_CONNECT = "start a loop of its own in the child, and connect there"


def _trio() -> Any:
    """The module, if the caller is a task of trio."""
    if "trio" not in sys.modules:
        return None
    from ._trio import trio

    return trio()


def _no_loop() -> BaseException:
    if _local.event_loop is not None and _local.event_loop.is_running():
        # It runs in the parent. asyncio has no running loop in a child that was forked from inside one.
        return _errors.from_native("forked", f"{_FORKED}; {_CONNECT}", _FORKED, _CONNECT, None, None, None)
    return RuntimeError("no event loop is running: await this inside of asyncio or trio, or use latchwork.connect()")


def warn_if_blocked() -> None:
    """Warns that a call has blocked the event loop of this thread for long, if there is one."""
    asyncio: Any = sys.modules.get("asyncio")
    if asyncio is not None and asyncio._get_running_loop() is not None or _trio() is not None:
        text = (
            "this call blocks the event loop for more than a second: no task goes on, not even one that holds the lock; "
            "connect by latchwork.aio, or call it in a thread: asyncio.to_thread(), trio.to_thread.run_sync()"
        )
        warnings.warn(text, RuntimeWarning, stacklevel=level())


async def run_while(work: Coroutine[Any, Any, T], guard: "AsyncGuard") -> T:
    trio = _trio()
    if trio is not None:
        from ._trio import run_while as run_in_trio

        return await run_in_trio(trio, work, guard)
    import asyncio

    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(_awaited(guard.lost))
    closed = False
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        if watch.result() is None:
            # Released meanwhile: the work goes on by itself.
            return await task
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        guard.ensure_held()
        raise AssertionError("a lost hold is not held")
    except GeneratorExit:
        # Nothing can be awaited any more, nor cancelled if the loop is closed.
        closed = True
        for one in (task, watch):
            with contextlib.suppress(RuntimeError):
                one.cancel()
        raise
    finally:
        for one in () if closed else (task, watch):
            if not one.done():
                one.cancel()
                await asyncio.gather(one, return_exceptions=True)


async def _awaited(lost: "Loss") -> Optional[str]:
    return await lost


def _running() -> Any:
    """The task that runs, of asyncio or of trio, or nothing."""
    trio = _trio()
    if trio is not None:
        return trio.lowlevel.current_task()
    import asyncio

    running = asyncio.current_task()
    if running is None:
        # From CPython 3.14 on it does not know the tasks that are written in Python, as those of nest_asyncio.
        running = getattr(asyncio.tasks, "_py_current_task", asyncio.current_task)()
    return running


def task() -> Any:
    """The task that runs."""
    running = _running()
    if running is None:
        raise RuntimeError("`async with` on a lock needs a task; use `async with await lock.acquire()`")
    return running


def soon(callback: Callable[[Any], Any]) -> Callable[[Any], None]:
    """What has the running loop call this, from any thread."""
    trio = _trio()
    if trio is not None:
        token = trio.lowlevel.current_trio_token()

        def called_by_trio(value: Any) -> None:
            with contextlib.suppress(trio.RunFinishedError):
                token.run_sync_soon(callback, value)

        return called_by_trio
    import asyncio

    event_loop = asyncio.get_running_loop()

    def called(value: Any) -> None:
        if not event_loop.is_closed():
            event_loop.call_soon_threadsafe(callback, value)

    return called


_numbers: "weakref.WeakKeyDictionary[Any, int]" = weakref.WeakKeyDictionary()
_last = 0


def task_owner() -> str:
    """The owner of a reentrant lock that this task is: a number that no other task of the process gets."""
    global _last
    running = _running()
    if running is None:
        raise RuntimeError("a reentrant lock needs a task, or a name: acquire(owner=...)")
    number = _numbers.get(running)
    if number is None:
        _last += 1
        number = _numbers[running] = _last
    return f"task {number}"


async def nothing() -> None:
    """What is awaited where there is nothing to do."""


class Awaited(Coroutine[Any, Any, T]):
    """An operation under way: await it for its result, or enter it by ``async with``, which ends what it gave."""

    __slots__ = ("_coroutine", "_given")

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        self._coroutine = coroutine
        self._given: Optional[T] = None

    def send(self, value: Any) -> Any:
        return self._coroutine.send(value)

    def throw(self, *args: Any) -> Any:
        return self._coroutine.throw(*args)

    def close(self) -> None:
        self._coroutine.close()

    def __await__(self) -> Generator[Any, None, T]:
        return self._coroutine.__await__()

    async def __aenter__(self) -> T:
        self._given = await self._coroutine
        return self._given

    def _take(self) -> Optional[T]:
        given, self._given = self._given, None
        return given

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(
                f"{type(self).__name__!r} object has no attribute {name!r}: it is not awaited yet; write `await`, or `async with`"
            )

        def __enter__(self) -> Any:
            raise TypeError("it is for tasks: write `async with`")

        __exit__ = __enter__


class Acquiring(Awaited[_A]):
    """An acquire under way: await it for the guard, or use it in ``async with``."""

    __slots__ = ()

    def __aexit__(
        self,
        kind: Optional[Type[BaseException]],
        raised: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> Coroutine[Any, Any, None]:
        guard = self._take()
        if guard is None:
            return nothing()
        if _native.is_closed(kind, sys._getframe(1)):
            guard._forget()
            return nothing()
        return guard.__aexit__(kind, raised, trace)
