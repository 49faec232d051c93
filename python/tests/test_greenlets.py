"""Greenlets of gevent and of eventlet: one that waits for a lock lets the others of its thread run."""

import sys

import pytest

from conftest import run

pytestmark = pytest.mark.skipif(sys.version_info < (3, 10), reason="gevent and eventlet need Python 3.10")

WORK = """
lock, order = locks.lock("stock"), []

def work(n):
    with lock as guard:
        order.append(n)
        sleep(0.01)
        guard.ensure_held()
        order.append(n)

def times_out():
    try:
        lock.acquire(timeout=0.2)
    except latchwork.TimedOut:
        return "timed out"
"""

GEVENT = """
from gevent import monkey
monkey.patch_all()
import gevent, latchwork, sys, time
locks = latchwork.connect(sys.argv[1], namespace="gevent")
sleep = gevent.sleep
"""


def test_h351_greenlets_wait_side_by_side(redis_server):
    """H351: a greenlet that waits lets the one go on that holds the lock."""
    said = run(
        GEVENT
        + WORK
        + """
jobs = [gevent.spawn(work, n) for n in range(20)]
gevent.joinall(jobs, timeout=30, raise_error=True)
assert len(order) == 40 and all(order[n] == order[n + 1] for n in range(0, 40, 2)), order
with lock as guard:
    waiting = gevent.spawn(times_out)
    # A wait that gevent ends, by a timeout or by kill(), leaves no claim.
    killed = gevent.spawn(lock.acquire)
    begin = time.monotonic()
    try:
        with gevent.Timeout(0.1):
            lock.acquire()
    except gevent.Timeout:
        took = time.monotonic() - begin
    killed.kill()
    assert guard.lost.wait(timeout=0.05) is None
    assert waiting.get(timeout=20) == "timed out"
lock.acquire(timeout=20).release()
print("took", took < 15)
""",
        redis_server,
    )
    assert said.stdout == "took True\n", said


def test_h351_a_greenlet_owns_its_reentrant_lock(redis_server):
    """H351: greenlets of one thread do not enter a reentrant lock together."""
    said = run(
        GEVENT
        + """
lock = locks.reentrant("account")

def enters():
    with lock, lock:
        gevent.sleep(0.05)

with lock, lock:
    assert gevent.spawn(lock.try_acquire).get(timeout=20) is None
gevent.joinall([gevent.spawn(enters) for _ in range(5)], timeout=30, raise_error=True)
# A thread of a pool has no greenlets, and waits by itself.
assert gevent.get_hub().threadpool.apply(lambda: locks.lock("a").acquire(timeout=20).token) > 0
print("owned")
""",
        redis_server,
    )
    assert said.stdout == "owned\n", said


EVENTLET = """
import eventlet
eventlet.monkey_patch()
import latchwork, sys, time
locks = latchwork.connect(sys.argv[1], namespace="eventlet")
sleep = eventlet.sleep
"""


def test_h351_greenlets_of_eventlet_wait_side_by_side(redis_server):
    """H351: the same with eventlet."""
    said = run(
        EVENTLET
        + WORK
        + """
jobs = [eventlet.spawn(work, n) for n in range(20)]
with eventlet.Timeout(30):
    for job in jobs:
        job.wait()
assert len(order) == 40 and all(order[n] == order[n + 1] for n in range(0, 40, 2)), order
with lock as guard:
    waiting = eventlet.spawn(times_out)
    # A wait that eventlet ends, by a timeout or by kill(), leaves no claim.
    killed = eventlet.spawn(lock.acquire)
    begin = time.monotonic()
    try:
        with eventlet.Timeout(0.1):
            lock.acquire()
    except eventlet.Timeout:
        took = time.monotonic() - begin
    killed.kill()
    assert guard.lost.wait(timeout=0.05) is None
    with eventlet.Timeout(20):
        assert waiting.wait() == "timed out"
lock.acquire(timeout=20).release()
print("took", took < 15)
""",
        redis_server,
    )
    assert said.stdout == "took True\n", said


def test_h351_a_greenlet_of_eventlet_owns_its_reentrant_lock(redis_server):
    """H351: the same with eventlet."""
    said = run(
        EVENTLET
        + """
lock = locks.reentrant("account")

def enters():
    with lock, lock:
        eventlet.sleep(0.05)

with eventlet.Timeout(30):
    with lock, lock:
        assert eventlet.spawn(lock.try_acquire).wait() is None
    for job in [eventlet.spawn(enters) for _ in range(5)]:
        job.wait()
    # A thread of a pool has no greenlets, and waits by itself.
    from eventlet import tpool
    assert tpool.execute(lambda: locks.lock("a").acquire(timeout=20).token) > 0
    # A loss is logged, and told to callbacks, by a greenlet as well.
    told = eventlet.event.Event()
    locks.on_lost(told.send)
    guard = locks.lock("lost").acquire()
    locks.force_release("lost")
    assert told.wait().reason == "taken"
    guard._forget()
print("owned")
""",
        redis_server,
    )
    assert said.stdout == "owned\n", said


def test_eventlet_that_is_not_patched_in_waits_by_threads():
    """Without `monkey_patch()` the program's threads are threads."""
    said = run(
        """
import eventlet, latchwork, threading
locks = latchwork.connect("mem:")
guard = locks.lock("a").acquire()
threading.Timer(0.1, guard.release).start()
with locks.lock("a").acquire(timeout=20):
    print("acquired")
"""
    )
    assert said.stdout == "acquired\n", said
