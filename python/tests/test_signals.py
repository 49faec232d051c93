"""Ctrl-C ends every wait, and leaves nothing behind."""

import time

import pytest

import latchwork

from conftest import Stalls, interrupt, run, start, wait_until

WAITING = """
    import os, signal, socket, sys, threading, time
    import latchwork

    url, dead, thread, kind = sys.argv[1:]
    # A shell has its jobs in the background ignore it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    locks = latchwork.connect(url)
    name = f"wanted-{kind}"
    if thread != "main":
        # The kernel then delivers the signal to the other thread, which Python did not start.
        ready = threading.Event()
        def other():
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
            ready.set()
            # A busy one rings the bell of the connection again and again.
            while thread == "busy":
                locks.lock("busy").acquire().release()
            time.sleep(60)
        threading.Thread(target=other, daemon=True).start()
        ready.wait()
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})

    def loss():
        held = locks.lock("other").acquire()
        held.lost.wait()

    def leaders():
        for leader in locks.election(name).observe():
            pass

    waits = {
        "lock": lambda: locks.lock(name).acquire(),
        "timeout": lambda: locks.lock(name).acquire(timeout=60),
        "fair": lambda: locks.lock(name, fair=True).acquire(),
        "with": lambda: locks.lock(name).__enter__(),
        "read": lambda: locks.rwlock(name).read.acquire(),
        "write": lambda: locks.rwlock(name).write.acquire(),
        "semaphore": lambda: locks.semaphore(name, of=1).acquire(timeout=60),
        "reentrant": lambda: locks.reentrant(name).acquire(),
        "multi": lambda: locks.multi(["free", name]).acquire(),
        "election": lambda: locks.election(name).campaign(),
        "once": lambda: locks.once(name, every="1d").begin(timeout=60),
        "observe": leaders,
        "lost": loss,
        "connect": lambda: latchwork.connect(dead),
        "doctor": lambda: latchwork.doctor(dead),
    }
    print("ready", flush=True)
    try:
        waits[kind]()
    except KeyboardInterrupt:
        print(time.time(), flush=True)
        # The claim is withdrawn in the background; its ttl would be 30 s.
        for _ in range(200):
            left = [view.key for view in locks.ls() if view.waiters or view.key == "free"]
            if not left:
                break
            time.sleep(0.01)
        print("left:", left, flush=True)
"""

#: Kinds that leave no claim to wait for.
UNSEEN = ("observe", "lost", "connect", "doctor")


@pytest.fixture(scope="module")
def dead():
    """A server that takes connections and never answers: its address."""
    import socket

    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(64)
        yield f"redis://127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize("thread", ["main", "other", "busy"])
@pytest.mark.parametrize(
    "kind",
    ["lock", "timeout", "fair", "with", "read", "write", "semaphore", "reentrant", "multi", "election", "once", *UNSEEN],
)
def test_ctrl_c_ends_every_wait_within_50_ms(redis_server, dead, thread, kind):
    # A process that gets no processor for a moment is late once. One that does not listen is late each time.
    for _ in range(6):
        if interrupted_in(redis_server, dead, thread, kind) < 0.05:
            return
        time.sleep(1)
    pytest.fail("late six times, a second apart")


def interrupted_in(redis_server, dead, thread, kind):
    name = f"wanted-{kind}"
    with latchwork.connect(redis_server) as locks:
        held = hold(locks, kind, name)
        waiter = start(WAITING, redis_server, dead, thread, kind)
        assert waiter.stdout.readline() == "ready\n", waiter.communicate()
        if kind in UNSEEN:
            time.sleep(0.2)
        else:
            wait_until(lambda: locks.show(name).waiters, "the other process waits")
            time.sleep(0.02)
        with Stalls() as stalls:
            sent = time.time()
            interrupt(waiter)
            out, err = waiter.communicate(timeout=20)
        assert waiter.returncode == 0, err
        ended, left = out.splitlines()
        assert left == "left: []"
        if held is not None:
            held.release()
    return float(ended) - sent - stalls.longest


def hold(locks, kind, name):
    if kind in ("lost", "connect", "doctor"):
        return None
    if kind in ("election", "observe"):
        return locks.election(name).campaign()
    if kind == "once":
        return locks.once(name, every="1d").begin()
    if kind == "read":
        return locks.rwlock(name).write.acquire()
    if kind == "write":
        return locks.rwlock(name).read.acquire()
    if kind == "semaphore":
        return locks.semaphore(name, of=1).acquire()
    return locks.lock(name).acquire()


def test_ctrl_c_at_the_moment_of_the_grant_leaves_nothing(redis_server):
    said = run(
        """
        import contextlib, os, signal, sys, threading, time
        import latchwork

        signal.signal(signal.SIGINT, signal.default_int_handler)
        locks = latchwork.connect(sys.argv[1])
        lock = locks.lock("moment")
        enters = [lock.__enter__, lambda: contextlib.ExitStack().enter_context(lock)]
        for number in range(20):
            held = latchwork.connect(sys.argv[1]).lock("moment").acquire()

            def let():
                time.sleep(0.05)
                # The kernel may give the signal to this thread: Python handles it in the main one.
                signal.pthread_kill(threading.get_ident(), signal.SIGINT)
                held.release()

            other = threading.Thread(target=let)
            try:
                other.start()
                enters[number % 2]()
                time.sleep(1)
                print("no interrupt")
            except KeyboardInterrupt:
                pass
            other.join()
            until = time.monotonic() + 5
            while locks.show("moment").holders:
                assert time.monotonic() < until, f"round {number}: still held"
                time.sleep(0.01)
        print("free")
        """,
        redis_server,
    )
    assert said.stdout == "free\n", said


def test_a_handler_that_does_not_raise_lets_the_wait_go_on(redis_server):
    said = run(
        """
        import signal, sys, threading, time
        import latchwork

        locks = latchwork.connect(sys.argv[1])
        held = locks.lock("alarm").acquire()
        rang = []
        # It may use the package itself.
        def ring(*_):
            with locks.lock("in-handler"):
                rang.append(time.monotonic())
        signal.signal(signal.SIGALRM, ring)
        signal.setitimer(signal.ITIMER_REAL, 0.1, 0.1)
        try:
            locks.lock("alarm").acquire(timeout=1)
        except latchwork.TimedOut:
            signal.setitimer(signal.ITIMER_REAL, 0)
            print(len(rang))
        held.release()
        """,
        redis_server,
    )
    assert int(said.stdout) >= 5, said


def test_a_signal_mask_of_threads_is_left_alone():
    said = run(
        """
        import os, signal
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
        handler = signal.getsignal(signal.SIGINT)
        import latchwork
        with latchwork.connect("mem:") as locks, locks.lock("a"):
            pass
        assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before
        # A shell that starts a program in the background lets it ignore the signal.
        assert signal.getsignal(signal.SIGINT) is handler
        """
    )
    assert said.returncode == 0, said
