"""What other locks have (``threading``, redis-py, filelock, kazoo, python-redis-lock, portalocker, pottery), and what to write
here in its place."""

from __future__ import annotations

from typing import Any, Dict, Mapping

#: Of a lock.
ATTRIBUTES = {
    "release": "the guard that acquire() returned has it",
    "owned": "ask the guard that acquire() returned: guard.ensure_held(), guard.state",
    "is_locked": "see Locks.show(name).holders; the answer may be old when it arrives",
    "is_acquired": "ask the guard that acquire() returned: guard.ensure_held(), guard.state",
    "locked": "see Locks.show(name).holders; the answer may be old when it arrives",
    "extend": "a lock that is held is renewed in the background",
    "reacquire": "a lock that is held is renewed in the background",
    "reset": "an operator releases by force: Locks.force_release(name)",
    "reset_all": "an operator releases by force: for view in locks.ls(): locks.force_release(view)",
    "contenders": "see Locks.show(name).waiters",
    "cancel": "acquire(timeout=5) ends by itself, and Ctrl-C or the cancellation of the task ends it at once",
}

_NOT_POLLED = "leave it out: waiters are notified"
_RENEWED = "leave it out: a lock that is held is renewed until its guard ends; max_hold=60 limits the hold"
_TTL = "write ttl=30: the store keeps the lock so long without a renewal, and it is renewed until its guard ends"
_OWNER = "leave it out: the guard is the hold, whatever thread or task has it"
_NAMED = "write holder=: it is what others see of the holder"
_TRIED = "call try_acquire(): it is None if the lock is not free"
_ONCE = f"to try once, {_TRIED}; to wait, leave it out"
_RAISED = "leave it out: a store that does not answer raises Unreachable"
_OF_THE_LOCK = "it is the lock's: lock(name, ttl=30)"
_SIDES = "rwlock(name).read and rwlock(name).write are locks of their own"
_WAITED = "write timeout=5, which raises TimedOut"
_LIMIT = "write acquire(timeout=5), which raises TimedOut"

#: Of a call that acquires.
_OF_ACQUIRE = {
    "blocking": _ONCE,
    "block": _ONCE,
    "wait": _ONCE,
    "fail_when_locked": _TRIED,
    "blocking_timeout": _WAITED,
    "wait_time": _WAITED,
    "raise_on_redis_error": _RAISED,
    "raise_on_redis_errors": _RAISED,
    "token": "leave it out: the store draws the token, guard.token",
    "ttl": _OF_THE_LOCK,
    "expire": _OF_THE_LOCK,
    "lease_time": _OF_THE_LOCK,
    "sleep": _NOT_POLLED,
    "poll_interval": _NOT_POLLED,
    "poll_intervall": _NOT_POLLED,
    "check_interval": _NOT_POLLED,
    "ephemeral": "leave it out: the lock of a holder that has died is free after its ttl",
    "cancel_check": "leave it out: Ctrl-C, or the cancellation of the task, ends a wait at once",
}

#: Of a lock that is made.
_OF_LOCK = {
    "timeout": f"{_TTL}. To limit the wait, {_LIMIT}",
    "expire": _TTL,
    "ex": _TTL,
    "px": _TTL,
    "lease_time": _TTL,
    "auto_release_time": _TTL,
    "auto_renewal": _RENEWED,
    "num_extensions": _RENEWED,
    "lifetime": f"write max_hold=60: the lock is lost after it. {_TTL}",
    "blocking": _ONCE,
    "fail_when_locked": _TRIED,
    "blocking_timeout": _LIMIT,
    "context_manager_blocking": _ONCE,
    "context_manager_timeout": "write with lock.acquire(timeout=5), which raises TimedOut",
    "raise_on_redis_error": _RAISED,
    "raise_on_redis_errors": _RAISED,
    "sleep": _NOT_POLLED,
    "poll_interval": _NOT_POLLED,
    "check_interval": _NOT_POLLED,
    "thread_local": _OWNER,
    "is_singleton": f"{_OWNER}; for a lock that its thread or task may acquire again, call reentrant(name)",
    "strict": "leave it out: a lock is released by its guard alone",
    "signal_expire": "leave it out: the store notifies waiters",
    "id": _NAMED,
    "identifier": _NAMED,
    "extra_lock_patterns": "leave it out: see Locks.ls() and Locks.show()",
    "lock_class": "leave it out: rwlock(), semaphore(), reentrant() and multi() are the other kinds",
    "masters": "it is the connection's: connect('redlock://a,b,c')",
    "redis_client": "it is the connection's: connect(client)",
    "namespace": "it is the connection's: connect(url, namespace='shop'), or locks.namespace('shop')",
    "max_leases": "write of=3",
    "value": "write of=3",
    "mode": _SIDES,
    "shared": _SIDES,
}


def _refused(call: str, more: Mapping[str, Any], hints: Dict[str, str]) -> TypeError:
    name = next(iter(more))
    hint = hints.get(name)
    return TypeError(f"{call}() got an unexpected keyword argument {name!r}" + (f": {hint}" if hint else ""))


def of_acquire(more: Mapping[str, Any], call: str = "Lock.acquire") -> TypeError:
    """What a call that acquires raises for an argument that it does not have."""
    return _refused(call, more, _OF_ACQUIRE)


def of_lock(more: Mapping[str, Any], call: str) -> TypeError:
    """What a call that makes a lock raises for an argument that it does not have."""
    return _refused(call, more, _OF_LOCK)
