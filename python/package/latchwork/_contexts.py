"""What the things have in common that a manager hands out: a name, and ``with`` or ``async with``."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import TYPE_CHECKING, Any, Coroutine, Dict, Generic, List, Optional, Type, TypeVar

from . import _loops, _native
from ._guards import AsyncGuard

N = TypeVar("N")
G = TypeVar("G")
A = TypeVar("A")

#: What the locks of `threading` and redis-py have, and where it is here.
_ELSEWHERE = {
    "release": "the guard that acquire() returned has it",
    "owned": "ask the guard that acquire() returned: guard.ensure_held(), guard.state",
    "locked": "see Locks.show(name).holders; the answer may be old when it arrives",
    "extend": "a lock that is held is renewed in the background",
    "reacquire": "a lock that is held is renewed in the background",
}


class Named(Generic[N]):
    """A thing of the engine, and its name."""

    __slots__ = ("_native", "_name")

    #: What stands before the class in its text.
    _module = ""

    def __init__(self, native: N, name: str) -> None:
        self._native = native
        self._name = name

    @property
    def name(self) -> str:
        """The name, without the namespace."""
        return self._name

    def __repr__(self) -> str:
        return f"<{self._module}{type(self).__name__} {self._name!r}>"

    def __reduce__(self) -> Any:
        raise TypeError("a lock belongs to its process and cannot be pickled: connect in the other process")

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            message = f"{type(self).__name__!r} object has no attribute {name!r}"
            hint = _ELSEWHERE.get(name)
            raise AttributeError(message if hint is None else f"{message}: {hint}")


class Entered(Named[N]):
    """A thing that is entered, by several threads or tasks at a time: the innermost guard of each is the last."""

    __slots__ = ("_guards",)

    def __init__(self, native: N, name: str) -> None:
        super().__init__(native, name)
        self._guards: Dict[Any, List[Any]] = {}

    def _push(self, who: Any, guard: Any) -> None:
        self._guards.setdefault(who, []).append(guard)

    def _pop(self, who: Any) -> Any:
        if who not in self._guards and len(self._guards) == 1:
            # Entered by one thread or task, and left by another, as fixtures and generators do.
            (who,) = self._guards
        stack = self._guards.get(who)
        if not stack:
            raise RuntimeError(
                f"the lock {self._name!r} was not entered by this thread or task: where a block is left by another one, "
                "use `with lock.acquire() as guard`"
            )
        guard = stack.pop()
        if not stack:
            del self._guards[who]
        return guard


class ByThreads(Entered[N], Generic[N, G]):
    """``with``, for threads."""

    __slots__ = ()

    def _enter(self) -> G:
        raise NotImplementedError

    def __enter__(self) -> G:
        guard = self._enter()
        self._push(threading.get_ident(), guard)
        return guard

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        raised: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        guard = self._pop(threading.get_ident())
        # What was skipped is false, and has no end.
        if guard:
            guard.__exit__(kind, raised, trace)


class ByTasks(Entered[N], Generic[N, A]):
    """``async with``, for tasks. Neither its begin nor its end is a coroutine: the operation itself is awaited."""

    __slots__ = ()

    def _acquiring(self) -> _native.Operation:
        raise NotImplementedError

    def __aenter__(self) -> Coroutine[Any, Any, A]:
        return self._acquiring().entering(AsyncGuard, self._guards)

    def __aexit__(
        self,
        kind: Optional[Type[BaseException]],
        raised: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> Coroutine[Any, Any, None]:
        # A guard that is the only one is popped by whoever leaves.
        guards = self._guards
        guard = self._pop(next(iter(guards)) if len(guards) == 1 else _loops.task())
        # What was skipped is false, and has no end.
        return guard.__aexit__(kind, raised, trace) if guard else _loops.nothing()
