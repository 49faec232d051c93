"""Exceptions: one tree, with the kinds of the engine, the message and the next step."""

from __future__ import annotations

from typing import Dict, Optional, Type


class LatchworkError(Exception):
    """Base of all exceptions of this package.

    ``str(error)`` has everything: what happened, to which key at which store, and the next step.
    """

    #: The kind, for logs and metrics: ``"timed_out"``, ``"unreachable"`` ...
    kind: str = "other"
    #: What happened, without key, store and next step.
    message: str = ""
    #: What to do next, if there is something.
    hint: Optional[str] = None
    #: The key, where the error is about one.
    key: Optional[str] = None
    #: The store, where the error is about one.
    store: Optional[str] = None


class TimedOut(LatchworkError, TimeoutError):
    """The lock was not free before the timeout. The message names the holder."""

    kind = "timed_out"


class UpgradeConflict(LatchworkError):
    """Another reader, which the message names, is upgrading its hold and waits for this one.

    This guard still holds the lock for reading: release it, then acquire the lock for writing. The same goes for a
    client of another kind (Curator, Go's) that waits for this hold.
    """

    kind = "upgrade_conflict"


class Unreachable(LatchworkError, ConnectionError):
    """The store did not answer in time."""

    kind = "unreachable"


class Busy(LatchworkError):
    """The store refuses because it has too much to do."""

    kind = "busy"


class Denied(LatchworkError, PermissionError):
    """The store refused the credentials or the rights."""

    kind = "denied"


class Unsupported(LatchworkError):
    """This store, or this event loop, cannot do what was asked for."""

    kind = "unsupported"


class Mismatch(LatchworkError):
    """The key is used as another kind of lock, or with another limit or period."""

    kind = "mismatch"


class Invalid(LatchworkError, ValueError):
    """A bad key, duration or address; the message names the field."""

    kind = "invalid"


class Closed(LatchworkError):
    """The connection was closed."""

    kind = "closed"


class Corrupt(LatchworkError):
    """The data that the store has for the key is damaged."""

    kind = "corrupt"


class Forked(LatchworkError, RuntimeError):
    """This process was forked from the one that connected. Connect in the child."""

    kind = "forked"


class NotHeld(LatchworkError):
    """The guard does not hold the lock for sure: :class:`Lost`, :class:`Suspect` or :class:`Released`."""


class Released(NotHeld, RuntimeError):
    """This guard has released the lock before."""

    kind = "released"


class Lost(NotHeld):
    """The lock was lost. This is final; work that was done since then may have overlapped."""

    kind = "lost"
    #: ``"expired"``, ``"taken"``, ``"session_ended"``, ``"max_hold"`` or ``"forked"``.
    reason: str = "other"
    #: The token of the hold, for callbacks of :meth:`Locks.on_lost`.
    token: Optional[int] = None


class Suspect(NotHeld):
    """The hold is in doubt until the store confirms it, for example after a pause of the machine."""

    kind = "suspect"


class Fenced(LatchworkError):
    """A resource refused a token because it has seen a larger one: stop working."""

    kind = "fenced"

    def __init__(self, message: str, token: int = 0, newest: int = 0) -> None:
        super().__init__(message)
        self.message = message
        #: The token that was refused.
        self.token = token
        #: The largest token that the resource has seen; 0 if it is not known.
        self.newest = newest


_KINDS: Dict[str, Type[LatchworkError]] = {
    error.kind: error
    for error in (
        TimedOut, UpgradeConflict, Unreachable, Busy, Denied, Unsupported, Mismatch, Invalid, Closed, Corrupt,
        Forked, Lost, Suspect, Released,
    )
}


def from_native(
    kind: str,
    text: str,
    message: str,
    hint: Optional[str],
    key: Optional[str],
    store: Optional[str],
    reason: Optional[str],
) -> LatchworkError:
    error = _KINDS.get(kind, LatchworkError)(text)
    error.kind = kind
    error.message = message
    error.hint = hint
    error.key = key
    error.store = store
    if isinstance(error, Lost) and reason is not None:
        error.reason = reason
    return error


def invalid(field: str, message: str) -> Invalid:
    error = Invalid(f"{field}: {message}")
    error.message = str(error)
    return error
