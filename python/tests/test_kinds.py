"""The other kinds of locks: readers, permits, owners, several, elections, periods."""

import asyncio
import concurrent.futures
import threading
import time
from datetime import timedelta

import pytest

import latchwork
from latchwork import aio

from conftest import wait_until
from servers import redis


def test_readers_share_and_writers_do_not(locks):
    catalogue = locks.rwlock("catalogue")
    with catalogue.read as one, catalogue.read.acquire(timeout=5) as other:
        assert one.token and other.token
        assert catalogue.write.try_acquire() is None
    with catalogue.write:
        assert catalogue.read.try_acquire() is None
        assert locks.show("catalogue").kind == "rwlock"


def test_a_read_hold_becomes_a_write_hold_and_back(upgrading, locks):
    catalogue = locks.rwlock("catalogue")
    with catalogue.read as guard:
        first = guard.token
        second = guard.upgrade(timeout=5)
        assert first < second == guard.token == guard.ensure_held()
        assert guard.tokens == {guard.key: second}
        assert catalogue.read.try_acquire() is None
        third = guard.downgrade()
        assert second < third == guard.token
        with catalogue.read.acquire(timeout=5) as other:
            with pytest.raises(latchwork.TimedOut, match="the lock is still held for reading"):
                guard.upgrade(timeout=0.05)
            assert guard.ensure_held() == third and other.ensure_held()
    # The upgrade that timed out is withdrawn in the background.
    wait_until(lambda: locks.show("catalogue").is_free, "the lock is free")
    with pytest.raises(latchwork.Released):
        guard.upgrade()


def test_the_second_reader_that_upgrades_is_refused(upgrading, locks):
    catalogue = locks.rwlock("catalogue")
    one, two = catalogue.read.acquire(timeout=5), catalogue.read.acquire(timeout=5)
    tokens = []
    thread = threading.Thread(target=lambda: tokens.append(one.upgrade(timeout=30)))
    thread.start()
    wait_until(lambda: locks.show("catalogue").waiters, "the first waits")
    with pytest.raises(latchwork.UpgradeConflict, match="is upgrading its hold, and waits for this one") as raised:
        two.upgrade(timeout=5)
    assert raised.value.kind == "upgrade_conflict" and raised.value.key == two.key
    assert raised.value.hint == "release this hold, then acquire the lock for writing"
    # As it says.
    two.ensure_held()
    two.release()
    thread.join(30)
    assert tokens == [one.token] and one.ensure_held() == tokens[0]
    one.release()
    with catalogue.write.acquire(timeout=5):
        pass


def test_only_readers_upgrade_and_only_writers_downgrade(upgrading, locks):
    with locks.lock("mutex") as guard:
        for change, how in [(guard.upgrade, "reading"), (guard.downgrade, "writing")]:
            with pytest.raises(latchwork.Invalid, match=f"held as a mutex, not for {how}"):
                change()
        assert guard.ensure_held()
    with locks.multi(["a", "b"]) as guard, pytest.raises(latchwork.Invalid, match="only the guard of one"):
        guard.upgrade()
    with locks.rwlock("catalogue").read as guard, pytest.raises(latchwork.Invalid, match="timeout: -1"):
        guard.upgrade(timeout=-1)


def test_a_loss_after_an_upgrade_is_noticed(upgrading, locks):
    guard = locks.rwlock("catalogue").read.acquire(timeout=5)
    lost = guard.lost
    guard.upgrade()
    assert not lost and lost.wait(timeout=0.1) is None
    locks.force_release("catalogue")
    assert lost.wait(timeout=30) == "taken" and guard.state == "lost"
    with pytest.raises(latchwork.Lost):
        guard.downgrade()
    guard._forget()


def test_the_limit_of_a_semaphore_changes_while_it_is_held(locks):
    old = locks.semaphore("gpu", of=3, permits=3, resize="to-mine")
    new = locks.semaphore("gpu", of=5, permits=2, resize="to-mine")
    with old as before:
        with new as after:
            assert old.try_acquire() is None
            assert locks.semaphore("gpu", of=9, resize="follow").try_acquire() is None
            with pytest.raises(latchwork.Mismatch, match="resize policy"):
                locks.semaphore("gpu", of=3).try_acquire()
            resized = locks.resize("gpu", 6)
            assert (resized.before, resized.limit, resized.held) == (5, 6, 5)
            assert str(resized) == "the limit was changed from 5 to 6; 5 permits are held"
            with locks.semaphore("gpu", of=9, resize="follow"):
                lowered = locks.resize("gpu", 1)
                assert "is admitted until more than" in str(lowered)
                before.ensure_held()
                after.ensure_held()
    assert locks.resize("gpu", 6).limit is None
    with pytest.raises(ValueError, match="never, to-mine or follow"):
        locks.semaphore("gpu", of=3, resize="always")


def test_a_semaphore_counts_permits(locks):
    one, two = locks.semaphore("gpu", of=3), locks.semaphore("gpu", of=3, permits=2)
    with one, two:
        assert one.try_acquire() is None
        view = locks.show("gpu")
        assert (view.kind, view.permits, sorted(it.permits for it in view.holders)) == ("semaphore", 3, [1, 2])
        with pytest.raises(latchwork.Mismatch):
            locks.semaphore("gpu", of=4).acquire(timeout=1)


def test_fair_waiters_are_served_in_order(locks):
    order, threads = [], []
    with locks.lock("stock"):
        for n in range(5):
            def work(n=n):
                with locks.lock("stock", fair=True):
                    order.append(n)

            threads.append(threading.Thread(target=work))
            threads[-1].start()
            wait_until(lambda: len(locks.show("stock").waiters) == n + 1, "it waits")
    for thread in threads:
        thread.join(30)
    assert order == [0, 1, 2, 3, 4]


def test_a_reentrant_lock_knows_its_thread(locks):
    lock, other = locks.reentrant("account"), []
    with lock as outer:
        with lock as inner:
            assert outer.token == inner.token
        thread = threading.Thread(target=lambda: other.append(lock.try_acquire()))
        thread.start()
        thread.join(10)
        assert other == [None] and outer.state == "held"
        assert locks.lock("account").try_acquire() is None
    with lock.acquire(owner="job 7"):
        with lock.acquire(owner="job 7", timeout=1):
            assert lock.try_acquire(owner="job 8") is None


def test_a_reentrant_lock_knows_its_task(url):
    async def main():
        async with await aio.connect(url, namespace="reentrant") as locks:
            lock = locks.reentrant("account")

            async def other():
                return await lock.try_acquire()

            async with lock as outer, lock as inner:
                assert outer.token == inner.token
                assert await asyncio.ensure_future(other()) is None
            # A task that has ended is no owner of a later one's lock, even at the same address.
            for _ in range(50):
                guard = await asyncio.ensure_future(other())
                assert await asyncio.ensure_future(other()) is None
                await guard.release()

    asyncio.run(main())


def test_several_locks_are_acquired_all_or_none(locks):
    both = locks.multi(["b", "a"], ttl=1)
    with locks.lock("b"):
        assert both.try_acquire() is None
        with pytest.raises(latchwork.TimedOut):
            both.acquire(timeout=0.05)
        locks.lock("a").acquire(timeout=5).release()
    with both as guard:
        assert len(guard.tokens) == 2 and guard.ensure_held()
        assert locks.lock("a").try_acquire() is None
        # A loss of one is a loss of all.
        locks.force_release("a")
        with pytest.raises(latchwork.Lost):
            wait_until(lambda: not guard.ensure_held(), "it is lost", 40)
        guard._forget()


def test_an_election_has_one_leader_and_terms(locks):
    one = locks.election("scheduler", candidate="one:1", ttl=2)
    two = locks.election("scheduler", candidate="two:2", ttl=2)
    assert one.leader() is None
    first = one.campaign(timeout=5)
    assert two.try_campaign() is None
    assert two.leader() == latchwork.Leader("one:1", first.token)
    seen, observing = [], two.observe()
    seen.append(next(observing))
    first.release()
    with two.campaign(timeout=5) as second:
        assert second.token > first.token
        wait_until(lambda: next(observing) == latchwork.Leader("two:2", second.token), "the new leader is seen")
    assert seen == [latchwork.Leader("one:1", first.token)]


def test_a_lead_that_is_lost_begins_again(locks):
    election = locks.election("scheduler", ttl=6)
    terms = []

    def work(leadership):
        terms.append(leadership.token)
        if len(terms) == 1:
            locks.force_release("scheduler")
            leadership.lost.wait(10)
            leadership.ensure_held()
        return "led"

    assert election.lead(work) == "led"
    assert len(terms) == 2 and terms[0] < terms[1]
    assert election.leader() is None


def test_a_lead_of_tasks_is_stopped_and_begins_again(url):
    async def main():
        async with await aio.connect(url, namespace="leads") as locks:
            election = locks.election("scheduler", candidate="me", ttl=6)
            terms, stopped = [], []

            async def work(leadership):
                terms.append(leadership.token)
                if len(terms) == 1:
                    try:
                        # The guard of this process learns of it at once, perhaps before the call returns.
                        await locks.force_release("scheduler")
                        await asyncio.sleep(60)
                    except asyncio.CancelledError:
                        stopped.append(True)
                        raise
                return "led"

            assert await election.lead(work) == "led"
            assert len(terms) == 2 and stopped == [True]
            async with election.campaign(timeout=5) as leadership:
                async for leader in election.observe():
                    assert leader == latchwork.Leader("me", leadership.token)
                    break

    asyncio.run(main())


def test_a_task_runs_once_in_its_period(locks):
    calls = []

    @locks.once("report", every="1d")
    def report(day, *, to="all"):
        """Sends the report."""
        calls.append((day, to))
        return len(calls)

    first, second = report("Monday", to="me"), report("Monday")
    assert (bool(first), first.value, bool(second)) == (True, 1, False)
    assert second.skipped.why == "done" and "done" in str(second.skipped)
    assert calls == [("Monday", "me")] and report.__doc__ == "Sends the report."
    assert locks.show("report").closed_for > 0
    assert locks.once("report", every=timedelta(days=1)).reset() == "opened"
    assert report("Monday").value == 2


def test_a_task_that_fails_is_open_again(locks):
    task = locks.once("mail", every=3600)
    with pytest.raises(KeyError):
        with task as run:
            assert run and run.period[0] <= time.time() < run.period[1]
            raise KeyError("no recipient")
    with task as run:
        assert run
        again = task.begin()
        assert not again and again.why == "running"
    with task as run:
        assert not run and run.why == "done"


def test_a_task_of_asyncio_runs_once(url):
    async def main():
        async with await aio.connect(url, namespace="once") as locks:
            task, ran = locks.once("mail", every="1h"), []

            @task
            async def mail():
                ran.append(True)
                await asyncio.sleep(0.01)
                return "sent"

            outcomes = await asyncio.gather(*(mail() for _ in range(8)))
            assert [outcome.value for outcome in outcomes if outcome] == ["sent"] and len(ran) == 1
            async with task as run:
                assert not run and run.why == "done"
            assert await task.reset() == "opened"
            with pytest.raises(KeyError):
                async with task as run:
                    assert run
                    raise KeyError
            async with task as run:
                assert run

    asyncio.run(main())


def test_bad_periods_are_invalid(locks):
    for every in ("1y2", 0.5, -1, "", timedelta(milliseconds=1500)):
        with pytest.raises(latchwork.Invalid):
            locks.once("x", every=every)


def test_h280_an_empty_variable_is_no_default(monkeypatch):
    monkeypatch.setenv("LATCHWORK_STORE", " \n")
    with pytest.raises(latchwork.Invalid, match="LATCHWORK_STORE: it is set, and empty"):
        latchwork.connect()
    monkeypatch.setenv("LATCHWORK_STORE", " mem:shared\n")
    assert latchwork.default_store() == "mem:shared"


def test_h282_a_socket_of_redis_serves_a_waiter(tmp_path):
    with redis(tmp_path):
        url = f"redis+unix://{tmp_path}/socket?db=1"
        with latchwork.connect(url) as one, latchwork.connect(url) as two:
            held = one.lock("a").acquire()
            with concurrent.futures.ThreadPoolExecutor() as pool:
                waiting = pool.submit(two.lock("a").acquire, timeout=20)
                wait_until(lambda: one.show("a").waiters, "a waiter")
                held.release()
                waiting.result().release()


def test_ls_and_doctor_show_the_store(url, monkeypatch):
    report = latchwork.doctor(url)
    assert report.is_fit and report.store and report.findings
    with latchwork.connect(url, namespace="shown") as locks:
        with locks.lock("b", holder="me"), locks.lock("a"):
            views = locks.ls()
            assert [view.key for view in views] == ["shown:a", "shown:b"]
            assert views[1].holders[0].holder == "me" and not views[1].is_free
            assert views[1].holders[0].token and views[1].holders[0].remaining > 0
    monkeypatch.setenv("LATCHWORK_STORE", url)
    assert latchwork.ls("shown") == []
    prepared = latchwork.init(url)
    assert prepared.store == report.store

    async def main():
        assert await aio.init(url) == prepared
        assert await aio.ls("shown") == []
        return await aio.doctor(url)

    assert asyncio.run(main()).store == report.store


def test_the_fields_of_cron_bound_the_periods_of_a_task():
    from datetime import datetime
    from zoneinfo import ZoneInfo

    from latchwork.testing import Store

    store, ran = Store(), []
    locks = store.locks()

    @locks.once("mail", cron="* * * * *")
    def mail():
        ran.append(store.elapsed)

    for _ in range(3):
        assert mail().ran and mail().skipped.why == "done"
        store.advance(60)
    assert ran == [0, 60, 120]
    with locks.once("report", cron="30 3 * * 1-5", tz="Europe/Berlin") as run:
        begin, end = (datetime.fromtimestamp(it, ZoneInfo("Europe/Berlin")) for it in run.period)
        assert (begin.hour, begin.minute, end.hour, end.minute) == (3, 30, 3, 30)
        assert begin.weekday() < 5 and end.weekday() < 5 and (end - begin).days in (0, 1, 2, 3)
    for every, cron, words in [
        (None, "0 24 * * *", "every: hour"), (None, "0 3 * *", "five fields"), (None, "", "five fields"),
        (None, 7, "cron: 7 is not a str"), ("1d", "0 3 * * *", "one of every and cron"), (None, None, "one of every and cron"),
    ]:
        with pytest.raises(latchwork.Invalid, match=words):
            locks.once("x", every, cron=cron)

    async def main():
        tasks = store.aio_locks()

        @tasks.once("tasks", cron="@daily")
        async def task():
            return 7

        assert (await task()).value == 7 and not (await task()).ran

    asyncio.run(main())
