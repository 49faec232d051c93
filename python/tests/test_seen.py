"""What is seen from outside: logs, callbacks, and the store for tests of programs."""

import asyncio
import logging
import subprocess
import sys
import threading

import pytest

import latchwork
from latchwork import _events, aio
from latchwork.testing import Store

from conftest import run, wait_until
from servers import redis


def test_h360_a_loss_is_logged_and_told_to_callbacks(url, caplog):
    """H360: a loss in the background leaves a trace, also in a program that does not check."""
    caplog.set_level(logging.DEBUG, "latchwork")
    told, threads = [], []
    with latchwork.connect(url, namespace="h360", ttl=1) as locks:

        @locks.namespace("h360-other").on_lost
        def called(lost):
            threads.append(threading.current_thread().name)
            told.append(lost)

        locks.on_lost(lambda lost: 1 / 0)
        guard = locks.lock("stock").acquire()
        locks.force_release("stock")
        wait_until(lambda: told and "callback for its loss raised" in caplog.text, "the loss is told")
        (lost,) = told
        assert isinstance(lost, latchwork.Lost) and (lost.reason, lost.key, lost.token) == ("taken", guard.key, guard.token)
        assert lost.hint and str(guard.key) in str(lost) and threads == ["latchwork-events"]
        record = next(it for it in caplog.records if it.levelno == logging.ERROR and not it.exc_info)
        assert record.name == "latchwork" and record.latchwork_event == "lost" and record.latchwork_token == guard.token
        guard._forget()
        # A program that closes its connection has lost nothing.
        kept = locks.lock("kept").acquire()
        caplog.clear()
    assert kept.state == "lost" and len(told) == 1
    assert [it.getMessage() for it in caplog.records] == []


def test_h462_callbacks_are_called_whatever_else_fails(redis_server):
    """H462: no thread can be started, a handler of the program's logging raises, and so do other callbacks."""
    done = run(
        """
        import logging, sys, threading, latchwork

        class Broken(logging.Handler):
            def emit(self, record):
                raise OSError("no space left")

        logging.getLogger("latchwork").addHandler(Broken())
        start, told, calls = threading.Thread.start, threading.Semaphore(0), []

        def refused(thread):
            raise RuntimeError("can't start new thread")

        threading.Thread.start = refused
        try:
            latchwork.connect(sys.argv[1])
        except RuntimeError as error:
            print(error)
        threading.Thread.start = start
        with latchwork.connect(sys.argv[1], namespace="h462") as locks:
            locks.on_lost(lambda lost: sys.exit(3))
            locks.on_lost(lambda lost: (calls.append(lost.key), told.release()))
            for name in ("a", "b"):
                guard = locks.lock(name).acquire()
                locks.force_release(name)
                guard.lost.wait()
                assert told.acquire(timeout=20)
                guard._forget()
        print(calls)
        """,
        redis_server,
    )
    assert done.stdout == "can't start new thread\n['h462:a', 'h462:b']\n" and done.returncode == 0, done.stderr
    assert "no space left" in done.stderr


def test_a_callback_of_tasks_runs_on_their_loop(redis_server):
    async def main():
        async with aio.connect(redis_server, namespace="on-lost", ttl=1) as locks:
            told = asyncio.get_running_loop().create_future()
            with pytest.raises(TypeError, match="on_lost"):
                locks.on_lost(main)
            locks.on_lost(told.set_result)
            guard = await locks.lock("stock").acquire()
            await locks.force_release("stock")
            lost = await asyncio.wait_for(told, 20)
            assert lost.key == guard.key
            guard._forget()

    asyncio.run(main())


def test_a_store_that_is_away_is_logged_once(tmp_path, caplog):
    caplog.set_level(logging.INFO, "latchwork")
    seen = lambda kind: [it for it in caplog.records if getattr(it, "latchwork_event", None) == kind]
    with redis(tmp_path) as (port, _):
        locks = latchwork.connect(f"redis://127.0.0.1:{port}", ttl=3)
        guard = locks.lock("stock").acquire()
    wait_until(lambda: seen("unreachable") and seen("lost"), "it is logged", 40)
    assert len(seen("unreachable")) == 1 and seen("unreachable")[0].levelno == logging.WARNING
    assert guard.lost.reason == "expired"
    guard._forget()
    locks.close()


def test_a_long_wait_is_logged(monkeypatch, caplog):
    caplog.set_level(logging.INFO, "latchwork")
    news = latchwork._native.News()
    with latchwork.connect("mem:") as locks:
        native = latchwork._native.connect("mem:").wait().observed(news, 7)
        lock = native.lock("stock", (None, False, None, None, None))
        held = lock.acquire().giving(latchwork.Guard).wait()
        waiting = threading.Thread(target=lambda: lock.acquire().giving(latchwork.Guard).wait().release())
        waiting.start()
        monkeypatch.setattr(_events, "LONG_WAIT", 0.0)
        wait_until(lambda: news.waits(0.05), "it waits")
        assert news.waits(0.05)[0][:2] == (7, "stock") and news.waits(3600.0) == []
        for _ in range(2):
            _events._report_waits(news)
        # It is reported again when it has doubled.
        assert 1 <= caplog.text.count("stock: waiting for") <= 2
        held.release()
        waiting.join(20)
        assert news.waits(0.0) == []


def test_a_key_of_another_client_without_a_ttl_is_named(redis_server, monkeypatch, caplog):
    """A plain key that nobody deletes is waited for, and the wait, the timeout and `show` say what it is."""
    import redis as package

    what = "held by a client of another kind without a ttl"
    with package.Redis.from_url(redis_server) as client, latchwork.connect(redis_server) as locks:
        client.set("plain", "v")
        # A list has what Latchwork wrote: the keys of other programs are their data.
        assert locks.ls("plain") == [] and "without a ttl" in " ".join(locks.show("plain").notes)
        for limit, words in (0, "timed out without waiting: "), (0.05, "timed out after 50ms: "):
            with pytest.raises(latchwork.TimedOut) as caught:
                locks.lock("plain").acquire(timeout=limit)
            assert caught.value.message == words + what, caught.value
        monkeypatch.setattr(_events, "LONG_WAIT", 0.05)
        waiting = threading.Thread(target=lambda: locks.lock("plain").acquire().release())
        waiting.start()
        news = _events._news[1]

        def said():
            _events._report_waits(news)
            return f"plain: waiting for 0 s, {what}" in caplog.text

        wait_until(said, "the wait is reported, with what it waits for")
        # A key that is waited for has a queue, which is Latchwork's.
        assert [len(view.waiters) for view in locks.ls("plain")] == [1]
        client.delete("plain")
        waiting.join(20)


def test_the_events_end_with_the_process_and_begin_again_in_a_child():
    said = run(
        """
import logging, os, sys, threading, time, latchwork
logging.basicConfig(format="%(name)s %(levelname)s", stream=sys.stdout)

def loses():
    locks = latchwork.connect("mem:")
    guard = locks.lock("stock").acquire()
    told = threading.Event()
    locks.on_lost(lambda lost: told.set())
    locks.force_release("stock")
    assert told.wait(20)
    guard._forget()

loses()
sys.stdout.flush()
child = os.fork()
if not child:
    loses()
    begin = time.monotonic()
    latchwork._close_all()
    assert time.monotonic() - begin < 0.9, "it waited for a thread of its parent"
    sys.stdout.flush()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
begin = time.monotonic()
latchwork._close_all()
assert time.monotonic() - begin < 0.9, "it waited for the thread of the events"
"""
    )
    assert said.stdout == "latchwork ERROR\n" * 2 and said.stderr == "", said


def test_a_test_forces_a_loss_a_timeout_and_silence():
    store = Store()
    locks = store.locks(namespace="shop")
    guard = locks.lock("stock").acquire()
    store.advance(3600)
    assert guard.ensure_held() and store.elapsed == 3600
    store.lose("shop:stock")
    assert guard.lost.reason == "taken"
    guard._forget()
    guard = locks.lock("stock").acquire()
    store.suspend(31)
    with pytest.raises(latchwork.Lost) as caught:
        guard.ensure_held()
    assert caught.value.reason == "expired"
    guard._forget()
    with store.hold("stock", namespace="shop"):
        with pytest.raises(latchwork.TimedOut, match="another client"):
            locks.lock("stock").acquire(timeout=0)
        with store.running_clock(), pytest.raises(latchwork.TimedOut, match="another client"):
            locks.lock("stock").acquire(timeout=60)
    guard = locks.lock("stock").acquire()
    with store.in_doubt():
        with pytest.raises(latchwork.Suspect) as doubted:
            guard.ensure_held()
        assert guard.state == "suspect" and isinstance(doubted.value, latchwork.NotHeld)
    assert guard.ensure_held() == guard.token
    guard.release()
    guard = locks.lock("stock").acquire()
    with store.unreachable():
        with pytest.raises(latchwork.Unreachable):
            locks.lock("other").try_acquire()
        assert guard.ensure_held()
        store.advance(31)
        assert guard.lost.reason == "expired"
    guard._forget()

    async def main():
        async with store.aio_locks() as tasks:
            async with tasks.lock("stock"):
                assert (await tasks.show("stock")).holders

    asyncio.run(main())


def test_the_fixtures_of_pytest_need_no_import(tmp_path):
    (tmp_path / "test_it.py").write_text(
        "import pytest, latchwork\n"
        "def test_it(latchwork_store, latchwork_locks):\n"
        "    guard = latchwork_locks.lock('stock').acquire()\n"
        "    latchwork_store.lose('stock')\n"
        "    with pytest.raises(latchwork.Lost):\n"
        "        guard.release()\n"
        "def test_another_has_its_own(latchwork_locks, latchwork_aio_locks):\n"
        "    assert latchwork_locks.ls() == []\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    said = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert "2 passed" in said.stdout, said
