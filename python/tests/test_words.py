"""What errors and texts say: what happened, and what to write instead."""

import asyncio
import functools
import gc
import re
import weakref

import pytest

import latchwork
from latchwork import aio, fence


def test_exceptions_of_the_package_have_one_base(locks):
    guard = locks.lock("stock").acquire()
    guard.release()
    for verb in (guard.release, guard.ensure_held):
        with pytest.raises(latchwork.Released, match="released") as caught:
            verb()
        assert isinstance(caught.value, (latchwork.NotHeld)) and isinstance(caught.value, RuntimeError)
        assert caught.value.kind == "released" and caught.value.key == guard.key and caught.value.hint
    surrogate = b"\xff".decode("utf-8", "surrogateescape")
    for call in (
        lambda: latchwork.connect(5), lambda: latchwork.doctor(b"mem:"), lambda: locks.show(b"x"), lambda: locks.ls(None),
        lambda: locks.force_release(1), lambda: locks.lock(surrogate), lambda: locks.lock("a", holder=surrogate),
        lambda: locks.reentrant("a").acquire(owner=7), lambda: locks.once("a", surrogate), lambda: fence.condition("a b"),
    ):
        with pytest.raises(latchwork.Invalid, match="^(store|name|prefix|holder|owner|every|column): "):
            call()
    with pytest.raises(latchwork.Invalid, match="did you mean 'postgresql'"):
        fence.SqlFence("postgres")


def test_names_are_those_that_users_know():
    assert str(latchwork.TimedOut) == "<class 'latchwork.TimedOut'>" and aio.Lock.__module__ == "latchwork.aio"
    with latchwork.connect("mem:", namespace="shop") as locks:
        with pytest.raises(TypeError, match="Locks.lock"):
            locks.lock("a", patience=5)
        rwlock = locks.rwlock("catalogue")
        assert "catalogue" in repr(rwlock) and "'shop'" in repr(locks)
        kept = weakref.WeakValueDictionary(a=locks.lock("a"), b=locks)
        assert "b" in kept
        with locks.lock("a") as guard:
            assert weakref.ref(guard)() is guard


def test_h401_what_is_not_awaited_says_what_to_write(recwarn):
    """H401: a newcomer to asyncio leaves out `await`, or writes `with` where `async with` is due."""
    with pytest.raises(AttributeError, match="'lock'.*write `await`, or `async with`"):
        aio.connect("mem:").lock

    async def main():
        async with aio.connect("mem:") as tasks:
            lock = tasks.lock("a")
            for operation, name in ((lock.acquire(), "release"), (lock.try_acquire(), "token")):
                with pytest.raises(AttributeError, match=f"'{name}'.*write `await`"):
                    getattr(operation, name)
                assert not hasattr(operation, name)
            for wrong in (lock, tasks, lock.acquire(), tasks.reentrant("a"), tasks.rwlock("b").read, aio.lock("a")):
                with pytest.raises(TypeError, match="write `async with`"):
                    with wrong:
                        raise AssertionError("it is for tasks")
            assert (await tasks.show("a")).is_free

    asyncio.run(main())
    gc.collect()
    assert {str(it.message).split(" was never")[0] for it in recwarn} <= {
        "an operation of latchwork", "coroutine 'connect.<locals>.connected'"
    }


@pytest.mark.parametrize("url", ["mem", "file", "redis"], indirect=True)
def test_h402_a_guard_that_outlives_its_connection_says_so(url):
    """H402: the program itself ended the hold, so no other holder is to blame."""
    with latchwork.connect(url, namespace="h402") as locks:
        guard = locks.lock("a").acquire()
    for verb in (guard.ensure_held, guard.release):
        with pytest.raises(latchwork.Lost) as caught:
            verb()
    assert "was closed" in caught.value.message and "before you close" in caught.value.hint
    assert "another holder" not in str(caught.value) and caught.value.reason == "session_ended"


def test_a_lock_shows_its_namespace_and_its_kind():
    for connect in (latchwork.connect, lambda *given, **named: asyncio.run(opened(*given, **named))):
        locks = connect("mem:", namespace="shop")
        before = "aio." if locks.__class__.__module__ == "latchwork.aio" else ""
        made = (
            locks.lock("a"), locks.rwlock("a"), locks.rwlock("a").read, locks.rwlock("a").write, locks.semaphore("a", of=3, permits=2),
            locks.multi(["a", "b"]), locks.reentrant("a"), locks.election("a"), locks.once("a", every="1d"),
        )
        assert [repr(it).replace("aio.", "") for it in made] == [
            "<Lock 'a' in 'shop'>", "<RWLock 'a' in 'shop'>", "<Lock 'a' in 'shop' (read)>", "<Lock 'a' in 'shop' (write)>",
            "<Lock 'a' in 'shop' (2 of 3 permits)>", "<Lock 'a, b' in 'shop' (all of them)>", "<ReentrantLock 'a' in 'shop'>",
            "<Election 'a' in 'shop'>", "<Once 'a' in 'shop'>",
        ]
        assert repr(made[0]).startswith(f"<{before}Lock")
    assert repr(latchwork.connect("mem:").lock("a")) == "<Lock 'a'>" and repr(latchwork.lock("a")) == "<DefaultLock 'a'>"


async def opened(*given, **named):
    return await aio.connect(*given, **named)


#: What users of other locks write, and a word of what they are told to write.
OF_ACQUIRE = {
    "blocking": (False, "try_acquire"), "blocking_timeout": (5, "timeout=5"), "sleep": (0.1, "notified"),
    "poll_interval": (0.05, "notified"), "token": ("x", "guard.token"), "ephemeral": (True, "ttl"), "nonsense": (1, None),
}
OF_LOCK = {
    "timeout": (30, "ttl=30.*timeout=5"), "sleep": (0.1, "notified"), "thread_local": (False, "guard is the hold"),
    "blocking": (False, "try_acquire"), "blocking_timeout": (5, "acquire.timeout=5"), "expire": (60, "ttl=30"),
    "auto_renewal": (True, "renewed"), "is_singleton": (True, "reentrant"), "identifier": ("me", "holder="),
    "id": ("me", "holder="), "nonsense": (1, None),
}


def refused(call, name, value, hint):
    with pytest.raises(TypeError) as caught:
        call(**{name: value})
    said = str(caught.value)
    assert f"() got an unexpected keyword argument {name!r}" in said, said
    assert (": " in said) == (hint is not None) and re.search(hint or "", said), said


def test_the_arguments_of_other_locks_are_refused_with_what_to_write():
    with latchwork.connect("mem:") as locks:
        for name, (value, hint) in OF_ACQUIRE.items():
            for lock in locks.lock("a"), locks.reentrant("a"), locks.rwlock("a").read, latchwork.lock("a"):
                refused(lock.acquire, name, value, hint)
        for name, (value, hint) in OF_LOCK.items():
            for make in locks.lock, locks.rwlock, locks.reentrant, latchwork.lock, aio.lock:
                refused(functools.partial(make, "a"), name, value, hint)
            refused(functools.partial(locks.semaphore, "a", 3), name, value, hint)
            refused(functools.partial(locks.multi, ["a"]), name, value, hint)
        refused(functools.partial(locks.semaphore, "a", 3), "max_leases", 3, "of=3")
        for value in "30s", "5":
            with pytest.raises(latchwork.Invalid, match=f"ttl: '{value}'.*write 30"):
                locks.lock("a", ttl=value)
        for value, hint in (True, "leave it out"), (False, "try_acquire"), (-1, "leave it out"):
            with pytest.raises(latchwork.Invalid, match=hint):
                locks.lock("a").acquire(value)

    async def main():
        async with aio.connect("mem:") as tasks:
            for name, (value, hint) in OF_ACQUIRE.items():
                # At the call, before anything is awaited.
                for lock in tasks.lock("a"), tasks.reentrant("a"), aio.lock("a"):
                    refused(lock.acquire, name, value, hint)

    asyncio.run(main())
