"""Fences for SQLAlchemy, Core and ORM: the check belongs to the transaction that writes.

.. code-block:: python

    with Session(engine) as session, session.begin():
        check_fence(session, "stock/42", guard)              # a table of fences
        session.add(..)

        fenced_update(session, Stock, guard, Stock.id == 42, left=19)     # or a column of the row

With an ``AsyncSession``: ``await session.run_sync(check_fence, "stock/42", guard)``.
"""

from __future__ import annotations

from typing import Any, Optional

from sqlalchemy import update  # type: ignore[import-not-found,unused-ignore]

from .. import Fenced
from .._times import Duration
from ..fence import SqlFence, Token, token_number

__all__ = ["check_fence", "create_fences", "fenced_update"]


def _fence(connection: Any, table: str, idle_limit: Optional[Duration] = 10.0) -> SqlFence:
    """The fence in the dialect of a ``Connection`` or a ``Session``."""
    bound = connection.get_bind() if hasattr(connection, "get_bind") else connection
    name = bound.dialect.name
    return SqlFence("mysql" if name == "mariadb" else name, table, idle_limit)


def create_fences(connection: Any, table: str = "fences") -> None:
    """Creates the table of fences, if it does not exist."""
    from sqlalchemy import text

    connection.execute(text(_fence(connection, table).create_table))


def check_fence(
    connection: Any, resource: str, token: Token, table: str = "fences", idle_limit: Optional[Duration] = 10.0
) -> None:
    """Admits the token, as :meth:`latchwork.fence.SqlFence.check`, in the dialect of the connection or session.

    :raises Fenced: The holder was superseded: roll back.
    """
    _fence(connection, table, idle_limit).check_sqlalchemy(connection, resource, token)


def fenced_update(session: Any, entity: Any, token: Token, *where: Any, column: str = "token", **values: Any) -> int:
    """Updates rows unless a larger token has written, and keeps the token in a column of theirs, a ``BigInteger``. Returns
    the number of rows.

    :raises Fenced: No row was changed: the holder was superseded, or there is no such row. Roll back.
    """
    number = token_number(token)
    kept = entity.c[column] if hasattr(entity, "c") else getattr(entity, column)
    changed: int = session.execute(update(entity).where(*where, kept <= number).values({column: number, **values})).rowcount
    if not changed:
        raise Fenced(f"token {number} has changed no row: it was superseded, or there is no such row: roll back", number)
    return changed
