"""What the things have in common that a manager hands out: a name, and ``with`` or ``async with``."""

from __future__ import annotations

import sys
import threading
from types import TracebackType
from typing import TYPE_CHECKING, Any, Coroutine, Generic, Optional, Type, TypeVar

from . import _native
from ._elsewhere import ATTRIBUTES

N = TypeVar("N")
G = TypeVar("G")
A = TypeVar("A")


class Named(_native.Blocks, Generic[N]):
    """A thing of the engine, and its name. The native half keeps its blocks, and their guards."""

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


class ByThreads(Named[N], Generic[N, G]):
    """``with``, for threads."""

    __slots__ = ()

    def _acquire(self) -> G:
        raise NotImplementedError

    def __enter__(self) -> G:
        guard = self._acquire()
        self._push(_native.block(sys._getframe(1)), threading.get_ident(), guard)
        return guard

    if TYPE_CHECKING:

        def __exit__(
            self,
            kind: Optional[Type[BaseException]],
            raised: Optional[BaseException],
            trace: Optional[TracebackType],
        ) -> None: ...

    else:
        __exit__ = _native.Blocks._leave


class ByTasks(Named[N], Generic[N, A]):
    """``async with``, for tasks. Neither its begin nor its end is a coroutine: the operation itself is awaited."""

    __slots__ = ()

    if TYPE_CHECKING:

        def __aenter__(self) -> Coroutine[Any, Any, A]: ...

        def __aexit__(
            self,
            kind: Optional[Type[BaseException]],
            raised: Optional[BaseException],
            trace: Optional[TracebackType],
        ) -> Coroutine[Any, Any, None]: ...

    else:
        __aenter__ = _native.Blocks._enter_async
        __aexit__ = _native.Blocks._leave_async

        def __enter__(self) -> Any:
            raise TypeError(f"{type(self).__name__} is for tasks: write `async with`, or connect by latchwork.connect()")

        __exit__ = __enter__
