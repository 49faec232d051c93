"""Functions that run under a lock, with a name made of their arguments."""

from __future__ import annotations

import functools
import inspect
import re
import string
from typing import Any, Callable, Dict, List, TypeVar

from . import _errors
from ._factory import text
from ._work import awaited, blocking, finished

W = TypeVar("W", bound=Callable[..., Any])

#: An object's own text, where its class has none: another one in each process.
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+>")


class Named:
    """A function, and the name of the lock of each call."""

    def __init__(self, name: str, work: Callable[..., Any]) -> None:
        self._name = text(name, "name")
        self._signature = inspect.signature(work)
        known = self._signature.parameters
        self._takes_more = [it.name for it in known.values() if it.kind is it.VAR_KEYWORD]
        by_position = [it.name for it in known.values() if it.kind is it.POSITIONAL_OR_KEYWORD]
        self.takes_guard = "guard" in known and (
            known["guard"].kind is inspect.Parameter.KEYWORD_ONLY or by_position[-1:] == ["guard"]
        )
        shown = [it for it in known.values() if not (self.takes_guard and it.name == "guard")]
        #: What callers see: they do not pass the guard.
        self.shown = self._signature.replace(parameters=shown)
        for field in self._fields():
            if field not in known and not self._takes_more:
                what = getattr(work, "__qualname__", repr(work))
                raise _errors.invalid("name", f"{name!r} has {{{field}}}, which is no parameter of {what}{self.shown}")

    def _fields(self) -> List[str]:
        try:
            parsed = [field for _, field, _, _ in string.Formatter().parse(self._name) if field is not None]
        except ValueError as error:
            raise _errors.invalid("name", f"{self._name!r}: {error}") from None
        return [re.split(r"[.\[]", field, maxsplit=1)[0] for field in parsed]

    def of(self, args: Any, kwargs: Dict[str, Any]) -> str:
        """The name for these arguments, whether they are given by position, by name or by default."""
        bound = (self._signature if "guard" in kwargs else self.shown).bind(*args, **kwargs)
        bound.apply_defaults()
        values = dict(bound.arguments)
        for more in self._takes_more:
            values.update(values[more])
        made = self._name.format_map(values)
        if _ADDRESS.search(made):
            text = "has the address of an object, which is another one in each process; name an attribute: {user.id}"
            raise _errors.invalid("name", f"{made!r} {text}")
        return made


def synchronized(name: str, run: Callable[..., Any], run_async: Callable[..., Any], only_async: bool) -> Callable[[W], W]:
    """Returns the decorator. ``run(name, work)`` and ``run_async(name, work)`` call ``work(guard)`` under the lock."""

    def decorate(work: W) -> W:
        (awaited if only_async or inspect.iscoroutinefunction(work) else blocking)(work, "synchronized")
        if only_async and not inspect.iscoroutinefunction(work):
            raise TypeError(f"synchronized: {work!r} is no coroutine function; for others, connect by latchwork.connect()")
        named = Named(name, work)

        def called(guard: Any, args: Any, kwargs: Dict[str, Any]) -> Any:
            if named.takes_guard and "guard" not in kwargs:
                kwargs = {**kwargs, "guard": guard}
            return work(*args, **kwargs)

        if inspect.iscoroutinefunction(work):

            @functools.wraps(work)
            async def wrapped_async(*args: Any, **kwargs: Any) -> Any:
                return await run_async(named.of(args, kwargs), lambda guard: called(guard, args, kwargs))

            wrapped: Any = wrapped_async
        else:

            @functools.wraps(work)
            def wrapped_call(*args: Any, **kwargs: Any) -> Any:
                def ran(guard: Any) -> Any:
                    value = called(guard, args, kwargs)
                    finished(value, work, "synchronized")
                    return value

                return run(named.of(args, kwargs), ran)

            wrapped = wrapped_call
        wrapped.__signature__ = named.shown
        result: W = wrapped
        return result

    return decorate


def refused(name: str, work: Any) -> Any:
    """In place of a blocking call where only coroutines run."""
    raise TypeError(f"synchronized: {name!r} has no coroutine function")
