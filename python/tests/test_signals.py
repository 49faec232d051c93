"""Ctrl-C ends every wait, and leaves nothing behind."""

import time

import pytest

import latchwork

from conftest import Stalls, interrupt, run, start, wait_until

WAITING = """
    import os, signal, sys, threading, time
    import latchwork

    locks = latchwork.connect(sys.argv[1])
    if sys.argv[3] == "other":
        # The kernel then delivers the signal to the other thread, which Python did not start.
        ready = threading.Event()
        def other():
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
            ready.set()
            time.sleep(60)
        threading.Thread(target=other, daemon=True).start()
        ready.wait()
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    print("ready", flush=True)
    try:
        if sys.argv[4] == "endless":
            locks.lock("wanted").acquire()
        elif sys.argv[4] == "limited":
            locks.lock("wanted").acquire(timeout=60)
        else:
            held = locks.lock("other").acquire()
            print("holds", flush=True)
            held.lost.wait()
    except KeyboardInterrupt:
        print(time.time(), flush=True)
        # The claim is withdrawn in the background; its ttl would be 30 s.
        for _ in range(200):
            names = [view.key for view in locks.ls() if view.waiters]
            if not names:
                break
            time.sleep(0.01)
        print("waiting for", names, flush=True)
"""


@pytest.mark.parametrize("thread", ["main", "other"])
@pytest.mark.parametrize("wait", ["endless", "limited", "lost"])
def test_ctrl_c_ends_a_wait_within_50_ms(redis_server, thread, wait):
    namespace = "wanted"
    with latchwork.connect(redis_server) as locks:
        held = locks.lock(namespace).acquire()
        waiter = start(WAITING, redis_server, "-", thread, wait)
        assert waiter.stdout.readline() == "ready\n", waiter.communicate()
        if wait == "lost":
            assert waiter.stdout.readline() == "holds\n"
            time.sleep(0.1)
        else:
            wait_until(lambda: locks.show(namespace).waiters, "the other process waits")
        with Stalls() as stalls:
            sent = time.time()
            interrupt(waiter)
            out, err = waiter.communicate(timeout=20)
        assert waiter.returncode == 0, err
        ended, left = out.splitlines()
        assert float(ended) - sent < 0.05 + stalls.longest
        assert left == "waiting for []"
        held.release()


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
        import os, signal, latchwork
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
        with latchwork.connect("mem:") as locks, locks.lock("a"):
            pass
        assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        """
    )
    assert said.returncode == 0, said
