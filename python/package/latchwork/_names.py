"""The names by which users know things, for tracebacks, pickles and ``help()``."""

from __future__ import annotations

from types import FunctionType
from typing import Any, Iterable

from ._factory import Factory


def publish(module: str, things: Iterable[Any]) -> None:
    """Gives classes and functions of the package's parts the name of the module that has them in public."""
    for thing in things:
        if getattr(thing, "__module__", "").startswith("latchwork._") and isinstance(thing, (type, FunctionType)):
            thing.__module__ = module


for _name, _method in vars(Factory).items():
    if isinstance(_method, FunctionType):
        # Each connection is called `Locks`.
        _method.__qualname__ = f"Locks.{_name}"
