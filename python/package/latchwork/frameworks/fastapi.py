"""Locks as dependencies of FastAPI.

.. code-block:: python

    from fastapi import Depends, FastAPI
    from latchwork import AsyncGuard
    from latchwork.frameworks.fastapi import lock

    @app.post("/orders/{order}/ship")
    async def ship(order: int, guard: AsyncGuard = Depends(lock("order/{order}", types={"order": int}))):
        guard.ensure_held()

A request whose lock is held elsewhere is answered with 423, and with 503 if the store does not answer or the lock was lost.
"""

from __future__ import annotations

import importlib
import inspect
import string
from typing import Any, AsyncIterator, Callable, Dict, Mapping, Optional

from .. import Invalid, LatchworkError, TimedOut
from .._aio_default import locks as default_locks
from .._aio_locks import Locks
from .._guards import AsyncGuard
from .._times import Duration, seconds

__all__ = ["lock"]

# By its name: its sources need a later Python than those of this package.
_fastapi: Any = importlib.import_module("fastapi")


def lock(
    name: str,
    *,
    timeout: Duration = 0,
    ttl: Optional[Duration] = None,
    fair: bool = False,
    types: Optional[Mapping[str, Any]] = None,
    locks: Optional[Callable[[Any], Locks]] = None,
) -> Callable[..., AsyncIterator[AsyncGuard]]:
    """Returns a dependency that holds a lock for as long as the request lasts, and whose value is the guard.

    :param name: The name of the lock, with parameters of the path or, if the path has none of that name, of the query.
    :param timeout: How long a request waits before it is answered with 423. Default: not at all.
    :param types: The types of the parameters, as the handler has them. Default: ``str``. With ``int``, ``7`` and ``007`` are the
        same lock.
    :param locks: Returns the connection, such as ``lambda request: request.app.state.locks``. Default: that of the default store.

    The lock is released after the response is sent; with ``Depends(.., scope="function")``, before.
    """
    limit = seconds(timeout, "timeout")
    fields = [field for _, field, _, _ in string.Formatter().parse(name) if field is not None]
    wrong = [field for field in fields if not field.isidentifier()]
    if wrong:
        raise Invalid(f"name: {name!r} has {{{wrong[0]}}}, which is not the plain name of a parameter")

    async def held(request: Any, **values: Any) -> AsyncIterator[AsyncGuard]:
        try:
            connection = locks(request) if locks is not None else await default_locks()
            guard = await connection.lock(name.format_map(values), ttl=ttl, fair=fair).acquire(limit)
        except TimedOut as error:
            raise _fastapi.HTTPException(423, str(error)) from None
        except LatchworkError as error:
            raise _unavailable(error) from error
        try:
            async with guard:
                yield guard
        except LatchworkError as error:
            raise _unavailable(error) from error

    # FastAPI reads the parameters from it.
    kind = inspect.Parameter.KEYWORD_ONLY
    given: Dict[str, Any] = {field: (types or {}).get(field, str) for field in fields}
    shown = [inspect.Parameter(field, kind, annotation=it) for field, it in given.items()]
    held.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter("request", kind, annotation=_fastapi.Request), *shown]
    )
    return held


def _unavailable(error: LatchworkError) -> Exception:
    refused: Exception = _fastapi.HTTPException(503, str(error))
    return refused
