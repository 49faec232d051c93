"""What the things have in common that a manager hands out: a name, and ``with`` or ``async with``."""

from __future__ import annotations

import sys
import threading
from types import TracebackType
from typing import TYPE_CHECKING, Any, Coroutine, Dict, Generic, List, Optional, Tuple, Type, TypeVar

from . import _loops, _native
from ._elsewhere import ATTRIBUTES
from ._guards import AsyncGuard
from ._places import block, is_closed

N = TypeVar("N")
G = TypeVar("G")
A = TypeVar("A")


class Named(Generic[N]):
    """A thing of the engine, and its name."""

    __slots__ = ("_native", "_name", "_shown", "__weakref__")

    #: What stands before the class in its text.
    _module = ""

    def __init__(self, native: N, name: str, shown: str = "") -> None:
        self._native = native
        self._name = name
        #: What its text says beside the name: the namespace, and the kind.
        self._shown = shown

    @property
    def name(self) -> str:
        """The name, without the namespace."""
        return self._name

    def __repr__(self) -> str:
        return f"<{self._module}{type(self).__name__} {self._name!r}{self._shown}>"

    def __reduce__(self) -> Any:
        raise TypeError("a lock belongs to its process and cannot be pickled: connect in the other process")

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            message = f"{type(self).__name__!r} object has no attribute {name!r}"
            hint = ATTRIBUTES.get(name)
            raise AttributeError(message if hint is None else f"{message}: {hint}")


class Entered(Named[N]):
    """A thing that is entered, by several blocks at a time. Each leaves with its own guard: of several in one block, with
    the innermost."""

    __slots__ = ("_guards",)

    def __init__(self, native: N, name: str, shown: str = "") -> None:
        super().__init__(native, name, shown)
        #: Of each block, the threads or tasks that entered, and their guards.
        self._guards: Dict[int, List[Tuple[Any, Any]]] = {}

    def _push(self, where: int, who: Any, guard: Any) -> None:
        self._guards.setdefault(where, []).append((who, guard))

    def _pop(self, where: int, tasks: bool) -> Any:
        if not self._guards.get(where):
            where = self._elsewhere(_loops.task() if tasks else threading.get_ident())
        stack = self._guards[where]
        _, guard = stack.pop()
        if not stack:
            del self._guards[where]
        return guard

    def _elsewhere(self, who: Any) -> int:
        """The block that was entered last by this thread or task, or the only one: fixtures enter and leave by calls."""
        entered = [(where, stack[-1][0]) for where, stack in list(self._guards.items()) if stack]
        own = [where for where, by in entered if by == who]
        if own:
            return own[-1]
        if len(entered) == 1:
            return entered[0][0]
        raise RuntimeError(
            f"the lock {self._name!r} was not entered by this thread or task: where a block is left by another one, "
            "use `with lock.acquire() as guard`"
        )


class ByThreads(Entered[N], Generic[N, G]):
    """``with``, for threads."""

    __slots__ = ()

    def _enter(self) -> G:
        raise NotImplementedError

    def __enter__(self) -> G:
        guard = self._enter()
        self._push(block(sys._getframe(1)), threading.get_ident(), guard)
        return guard

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        raised: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        guard = self._pop(block(sys._getframe(1)), False)
        # What was skipped is false, and has no end.
        if guard:
            guard.__exit__(kind, raised, trace)


class ByTasks(Entered[N], Generic[N, A]):
    """``async with``, for tasks. Neither its begin nor its end is a coroutine: the operation itself is awaited."""

    __slots__ = ()

    if not TYPE_CHECKING:

        def __enter__(self) -> Any:
            raise TypeError(f"{type(self).__name__} is for tasks: write `async with`, or connect by latchwork.connect()")

        __exit__ = __enter__

    def _acquiring(self) -> _native.Operation:
        raise NotImplementedError

    def __aenter__(self) -> Coroutine[Any, Any, A]:
        return self._acquiring().entering(AsyncGuard, self._guards, block(sys._getframe(1)))

    def __aexit__(
        self,
        kind: Optional[Type[BaseException]],
        raised: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> Coroutine[Any, Any, None]:
        frame = sys._getframe(1)
        guard: Any = self._pop(block(frame), True)
        if not guard:
            # What was skipped is false, and has no end.
            return _loops.nothing()
        if is_closed(kind, frame):
            guard._forget()
            return _loops.nothing()
        leaving: Coroutine[Any, Any, None] = guard._leave(raised).leaving(raised)
        return leaving
