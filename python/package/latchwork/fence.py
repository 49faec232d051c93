"""Fences: the resource's side, which refuses the token of a holder that was superseded.

A process can be paused right after ``guard.ensure_held()``. Only the resource can close that gap: it keeps the largest
token that it has seen, and refuses smaller ones. This module has the check for memory, for SQL databases and for Redis;
pass the connection of the library that you use.

In memory:

>>> from latchwork import fence
>>> stock = fence.Fence()
>>> stock.check_write(7)
>>> stock.check_write(5)
Traceback (most recent call last):
latchwork.Fenced: token 5 was superseded by 7: stop working

In a database, in the transaction that writes:

>>> import sqlite3
>>> fences = fence.SqlFence("sqlite", table="fences")
>>> db = sqlite3.connect(":memory:")
>>> fences.create(db.cursor())
>>> fences.check(db.cursor(), "stock/42", token=7)
>>> fences.check(db.cursor(), "stock/42", token=5)
Traceback (most recent call last):
latchwork.Fenced: stock/42: token 5 was superseded by 7: roll back and stop working
"""

from __future__ import annotations

import inspect
import re
import threading
from difflib import get_close_matches
from typing import Any, Dict, List, Optional, Tuple, Union

from . import _native
from ._errors import Fenced, Invalid, Mismatch
from ._guards import _Held
from ._times import Duration, maybe

__all__ = ["Fence", "Fenced", "RedisFence", "SqlFence", "condition"]

Token = Union[int, str, _Held]

#: Tokens are below 2^63.
_LAST = 2**63 - 1


def token_number(token: Token, field: str = "token") -> int:
    """The number of a token: of a guard, as a number, or as the decimal text that JSON carries."""
    if isinstance(token, _Held):
        return token.token
    number = token
    if isinstance(number, str) and re.fullmatch(r"[0-9]{1,19}", number):
        number = int(number)
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= _LAST:
        raise Invalid(f"{field}: {token!r} is not a token; give a guard, or its token as an int or as decimal digits")
    return int(number)


class Fence:
    """A fence in the memory of the resource's process.

    :param starting_at: The largest token that has written, as it is stored with the resource.
    :raises Invalid: That is not a token; so does each check.
    """

    def __init__(self, starting_at: Token = 0) -> None:
        self._lock = threading.Lock()
        self._written = token_number(starting_at, "starting_at")
        self._read = 0

    def check_write(self, token: Token) -> None:
        """Admits a write, unless a larger token has written or read.

        :raises Fenced: The holder was superseded.
        """
        number = token_number(token)
        with self._lock:
            newest = max(self._written, self._read)
            if number < newest:
                raise Fenced(f"token {number} was superseded by {newest}: stop working", number, newest)
            self._written = number

    def check_read(self, token: Token) -> None:
        """Admits a read, unless a larger token has written; afterwards no smaller one may write.

        :raises Fenced: The holder was superseded.
        """
        number = token_number(token)
        with self._lock:
            if number < self._written:
                raise Fenced(f"token {number} was superseded by {self._written}: stop working", number, self._written)
            self._read = max(self._read, number)

    @property
    def newest(self) -> int:
        """The largest token that has written."""
        return self._written


#: How a database's drivers write a parameter.
_STYLES = {"postgresql": "%s", "mysql": "%s", "sqlite": "?"}


class SqlFence:
    """A table of a database with the largest token of each resource.

    Call :meth:`check` inside of the transaction that writes, before the write, and roll back if it raises. It works
    with every cursor of the DB-API: psycopg, psycopg2, mysqlclient, PyMySQL, sqlite3; and with a connection or a session of
    SQLAlchemy by :meth:`check_sqlalchemy`, and with asyncio by :meth:`check_async`.

    :param dialect: ``"postgresql"``, ``"mysql"`` or ``"sqlite"``.
    :param idle_limit: How long PostgreSQL lets the transaction be idle after its check before it ends it, so that a
        holder that is stopped there does not keep the next one waiting. A shorter limit of the session stays; ``None``
        sets none.
    """

    def __init__(self, dialect: str, table: str = "fences", idle_limit: Optional[Duration] = 10.0) -> None:
        if dialect not in _STYLES:
            close = get_close_matches(str(dialect), _STYLES, 1, 0.5)
            meant = f"; did you mean {close[0]!r}?" if close else ""
            raise Invalid(f"dialect: {dialect!r} is none of {', '.join(_STYLES)}{meant}")
        create, register, admit, newest = _native.fence_statements(dialect, table, maybe(idle_limit, "idle_limit"))
        self._dialect, self._table = dialect, table
        self._create = create[0]
        self._register, self._admit, self._newest = register, admit, newest

    def create(self, cursor: Any) -> None:
        """Creates the table, if it does not exist."""
        cursor.execute(self._create)

    @property
    def create_table(self) -> str:
        """The statement that creates the table, for a migration."""
        return self._create

    def check(self, cursor: Any, resource: str, token: Token) -> None:
        """Admits the token, unless a larger one was admitted for the resource, and keeps it.

        :raises Fenced: The holder was superseded: roll back.
        :raises Invalid: That is not a token, or the cursor is of asyncio; nothing was sent.
        :raises Mismatch: The table holds something else than a token for the resource.
        """
        number = token_number(token)
        _refuse_asyncio("cursor", cursor, "fences.check_async(cursor, resource, token)")
        if self._dialect == "mysql":
            cursor.execute(*self._positional(self._register, resource, number))
        cursor.execute(*self._positional(self._admit, resource, number))
        if cursor.rowcount == 1:
            return
        cursor.execute(*self._positional(self._newest, resource, number))
        raise self._refused(resource, number, cursor.fetchone())

    async def check_async(self, cursor: Any, resource: str, token: Token) -> None:
        """As :meth:`check`, for cursors whose methods are awaited: psycopg's ``AsyncCursor``, aiomysql. asyncpg has no
        such cursor: pass its connection, in a transaction.

        :raises Invalid: Also for a connection of asyncpg that is in no transaction; nothing was sent.
        """
        number = token_number(token)
        if type(cursor).__module__.split(".")[0] == "asyncpg":
            return await self._check_asyncpg(cursor, resource, number)
        if self._dialect == "mysql":
            await cursor.execute(*self._positional(self._register, resource, number))
        await cursor.execute(*self._positional(self._admit, resource, number))
        if cursor.rowcount == 1:
            return
        await cursor.execute(*self._positional(self._newest, resource, number))
        raise self._refused(resource, number, await cursor.fetchone())

    async def _check_asyncpg(self, connection: Any, resource: str, token: int) -> None:
        if not getattr(connection, "is_in_transaction", bool)():
            raise Invalid(
                f"cursor: {connection!r} is in no transaction, which has to write what is checked; check inside of "
                "`async with connection.transaction():`, with the connection"
            )
        # It numbers its parameters as the statements do.
        if await connection.execute(self._admit[0], resource, token) == "INSERT 0 1":
            return
        raise self._refused(resource, token, await connection.fetchrow(self._newest[0], resource))

    def check_sqlalchemy(self, connection: Any, resource: str, token: Token) -> None:
        """As :meth:`check`, for a ``Connection`` or a ``Session`` of SQLAlchemy. With asyncio, let the session run it:
        ``await session.run_sync(fences.check_sqlalchemy, "stock/42", guard)``.

        :raises Invalid: Also for a connection or a session of asyncio; nothing was sent.
        """
        from sqlalchemy import text

        number = token_number(token)
        _refuse_asyncio("connection", connection, "session.run_sync(fences.check_sqlalchemy, resource, token)")
        values = {"resource": resource, "token": number}
        if self._dialect == "mysql":
            connection.execute(text(self._named(self._register)), values)
        if connection.execute(text(self._named(self._admit)), values).rowcount == 1:
            return
        row = connection.execute(text(self._named(self._newest)), {"resource": resource}).fetchone()
        raise self._refused(resource, number, row)

    def _refused(self, resource: str, token: int, row: Any) -> Exception:
        newest = row[0] if row else 0
        if isinstance(newest, bool) or not isinstance(newest, int) or not 0 <= newest <= _LAST:
            # Nobody gets past a text or a fraction, which SQLite keeps and orders above all numbers.
            return Mismatch(
                f"{resource}: the table {self._table} holds {newest!r}, which is not a token; roll back, and set it "
                f"to the largest token that has written: UPDATE {self._table} SET token = .. WHERE resource = .."
            )
        message = f"{resource}: token {token} was superseded by {newest}: roll back and stop working"
        return Fenced(message, token, newest)

    def _positional(
        self, statement: Tuple[str, List[str]], resource: str, token: int
    ) -> Tuple[str, Tuple[Any, ...]]:
        text, names = statement
        values: Dict[str, Any] = {"resource": resource, "token": token}
        # Each parameter is used once, in the order of its number.
        return _PARAMETER.sub(_STYLES[self._dialect], text), tuple(values[name] for name in names)

    def _named(self, statement: Tuple[str, List[str]]) -> str:
        text, names = statement
        left = iter(names)
        return _PARAMETER.sub(lambda _: f":{next(left)}", text)


def _refuse_asyncio(field: str, runner: Any, call: str) -> None:
    if inspect.iscoroutinefunction(runner.execute):
        raise Invalid(f"{field}: {runner!r} is of asyncio; write `await {call}`")


_PARAMETER = re.compile(r"\$\d+|\?\d*")


def condition(column: str = "token") -> str:
    """The condition for a row with a column of its own for the token: ``UPDATE ... SET token = %s WHERE ... AND
    token <= %s``. If no row changed, the holder was superseded, or there is no such row.

    >>> from latchwork import fence
    >>> fence.condition("token")
    'token <= %s'
    """
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", column):
        raise Invalid(f"column: {column!r} is not a plain name: letters, digits and _")
    return f"{column} <= %s"


class RedisFence:
    """A fence in Redis, for data in the same server: the check and the write are one script.

    :param client: A client of redis-py; with ``redis.asyncio``, await what the methods return.
    :param key: The key that keeps the largest token. On a Cluster, with the same hash tag as the data.
    """

    def __init__(self, client: Any, key: str) -> None:
        self._client = client
        self._key = key

    def set(self, token: Token, key: str, value: Union[str, bytes, int, float]) -> Any:
        """``SET key value`` under the fence.

        :raises Fenced: The holder was superseded; nothing was written.
        """
        return self.eval(token, "return redis.call('SET', KEYS[2], ARGV[2])", [key], [value])

    def eval(
        self,
        token: Token,
        script: str,
        keys: Optional[List[str]] = None,
        args: Optional[List[Union[str, bytes, int, float]]] = None,
    ) -> Any:
        """Runs a script of your own under the fence. Its keys begin at ``KEYS[2]``, its arguments at ``ARGV[2]``.

        :raises Fenced: The holder was superseded; nothing was written.
        """
        keys, args = [self._key, *(keys or [])], [str(token_number(token)), *(args or [])]
        try:
            answer = self._client.eval(_native.fence_check() + script, len(keys), *keys, *args)
        except Exception as error:
            raise _refusal(error) or error from None
        return _awaited(answer) if hasattr(answer, "__await__") else answer


async def _awaited(answer: Any) -> Any:
    try:
        return await answer
    except Exception as error:
        raise _refusal(error) or error from None


_REFUSED = re.compile(r"FENCED\W.*?token (\d+) was superseded by (\d+)")


def _refusal(error: Exception) -> Optional[Fenced]:
    """The refusal that an error of the client's is, if it is one."""
    found = _REFUSED.search(f"{type(error).__name__} {error}")
    if found is None:
        return None
    token, newest = int(found[1]), int(found[2])
    return Fenced(f"token {token} was superseded by {newest}: stop working", token, newest)
