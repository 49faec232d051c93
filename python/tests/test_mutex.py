"""The mutex of threads: what a guard promises, and the kinds of errors."""

import gc
import pickle
import threading
import time
import warnings
from datetime import timedelta
from decimal import Decimal

import pytest

import latchwork

from conftest import Stalls, run, wait_until


def test_one_holder_at_a_time(locks):
    inside, most, done = [], [], []

    def work():
        lock = locks.lock("stock")
        for _ in range(20):
            with lock:
                inside.append(1)
                most.append(len(inside))
                time.sleep(0)
                inside.pop()
                done.append(1)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert (max(most), len(done)) == (1, 120)


def test_tokens_grow_with_every_holder(locks):
    lock, last = locks.lock("stock"), 0
    for _ in range(5):
        with lock as guard:
            assert guard.token > last and guard.ensure_held() == guard.token
            last = guard.token


def test_acquire_times_out_and_names_the_holder(locks):
    with locks.lock("stock", holder="the night shift"):
        start = time.monotonic()
        with pytest.raises(latchwork.TimedOut) as caught:
            locks.lock("stock").acquire(timeout=timedelta(seconds=0.2))
        assert time.monotonic() - start >= 0.2
    error = caught.value
    assert isinstance(error, (latchwork.LatchworkError, TimeoutError))
    assert isinstance(error, TimeoutError)
    assert "the night shift" in str(error) and error.kind == "timed_out"
    assert error.key.endswith("stock") and error.store


def test_try_acquire_is_none_if_the_lock_is_held(locks):
    lock = locks.lock("stock")
    with lock.try_acquire() as guard:
        assert guard is not None and lock.try_acquire() is None
    with lock.try_acquire():
        pass


def test_a_body_that_raises_releases_and_raises(locks):
    lock = locks.lock("stock")
    with pytest.raises(KeyError):
        with lock:
            raise KeyError("mine")
    assert locks.show("stock").is_free or lock.try_acquire() is not None


def test_a_guard_is_released_once(locks):
    guard = locks.lock("stock").acquire()
    guard.release()
    assert guard.state == "released"
    with pytest.raises(latchwork.Released):
        guard.release()
    with pytest.raises(RuntimeError, match="released"):
        guard.ensure_held()


def test_a_hold_is_renewed_beyond_its_ttl(locks):
    lock = locks.lock("stock", ttl=1)
    with lock as guard:
        time.sleep(2.5)
        assert guard.ensure_held() == guard.token and lock.try_acquire() is None
        assert 0 < guard.remaining <= 1 and guard.ttl == pytest.approx(1)


def test_a_loss_is_told_to_the_holder(locks):
    guard = locks.lock("stock", ttl=1).acquire()
    assert not guard.lost and guard.lost.reason is None
    told = []
    watch = threading.Thread(target=lambda: told.append(guard.lost.wait()))
    watch.start()
    forced = locks.force_release("stock")
    assert len(forced.evicted) == 1 and forced.token > guard.token
    assert guard.lost.wait(timeout=10) == "taken"
    watch.join(10)
    assert told == ["taken"] and guard.lost.is_set() and guard.state == "lost"
    with pytest.raises(latchwork.Lost) as caught:
        guard.ensure_held()
    assert caught.value.reason == "taken" and isinstance(caught.value, latchwork.NotHeld)
    with pytest.raises(latchwork.Lost, match=str(guard.token)):
        guard.release()


def test_with_raises_if_the_lock_was_lost(locks):
    with pytest.raises(latchwork.Lost):
        with locks.lock("stock", ttl=1) as guard:
            locks.force_release("stock")
            guard.lost.wait(10)


def test_waiting_for_a_loss_ends_at_the_release(locks):
    guard = locks.lock("stock").acquire()
    assert guard.lost.wait(timeout=0.05) is None
    told = []
    watch = threading.Thread(target=lambda: told.append(guard.lost.wait()))
    watch.start()
    time.sleep(0.05)
    guard.release()
    watch.join(10)
    assert told == [None]


def test_max_hold_ends_a_hold(locks):
    guard = locks.lock("stock", ttl=1, max_hold=0.3).acquire()
    assert guard.lost.wait(10) == "max_hold"
    guard._forget()


def test_a_collected_guard_releases_and_warns(locks):
    lock = locks.lock("stock")
    guard = lock.acquire()
    with pytest.warns(RuntimeWarning, match="never released"):
        del guard
        gc.collect()
    lock.acquire(timeout=10).release()


BAD = [-1, -1e-9, float("nan"), float("inf"), 1e300, 10**400, True, False, "30", b"30", Decimal(30), [30], timedelta(-1)]


@pytest.mark.parametrize("value", BAD, ids=repr)
def test_a_bad_duration_names_its_field(value):
    with latchwork.connect("mem:") as locks:
        for field in ("ttl", "max_hold", "lock_delay"):
            with pytest.raises(latchwork.Invalid, match=f"^{field}: "):
                locks.lock("stock", **{field: value})
        with pytest.raises(ValueError, match="^timeout: "):
            locks.lock("stock").acquire(timeout=value)
        with locks.lock("stock") as guard, pytest.raises(latchwork.Invalid, match="^timeout: "):
            guard.lost.wait(value)
    for field in ("ttl", "op_timeout", "renew_every"):
        with pytest.raises(latchwork.Invalid, match=f"^{field}: "):
            latchwork.connect("mem:", **{field: value})


@pytest.mark.parametrize("value", [0, 0.0, 1, 0.25, timedelta(), timedelta(milliseconds=1), 1e9], ids=repr)
def test_a_duration_is_seconds_or_a_timedelta(value):
    with latchwork.connect("mem:") as locks:
        locks.lock("stock").acquire(timeout=value).release()


def test_a_timeout_of_zero_tries_once(locks):
    with locks.lock("stock", ttl=1).acquire(timeout=0) as guard:
        with pytest.raises(latchwork.TimedOut):
            locks.lock("stock").acquire(timeout=0)
        locks.force_release("stock")
        guard.lost.wait(timeout=20)
        assert guard.lost.wait(timeout=0) == "taken"
        guard._forget()


def test_what_other_locks_have_is_refused_with_where_it_is(locks):
    lock = locks.lock("stock")
    for name, hint in (("release", "guard"), ("locked", "show"), ("owned", "ensure_held"), ("extend", "renewed")):
        with pytest.raises(AttributeError, match=hint):
            getattr(lock, name)
    with pytest.raises(AttributeError, match="nonsense"):
        lock.nonsense
    with pytest.raises(latchwork.Invalid, match="try_acquire"):
        lock.acquire(False)
    with pytest.raises(latchwork.Invalid, match="leave it out"):
        lock.acquire(timeout=-1)


def test_a_block_may_be_left_by_another_thread(locks):
    lock = locks.lock("stock")
    guard = lock.__enter__()
    leaving = threading.Thread(target=lock.__exit__, args=(None, None, None))
    leaving.start()
    leaving.join(10)
    assert guard.state == "released"
    with pytest.raises(RuntimeError, match="not entered"):
        lock.__exit__(None, None, None)


def test_a_wrapper_leaves_with_the_guard_of_its_own_thread(locks):
    """The frame of its `__enter__` has ended, and the next thread's may be at the same place."""
    gpu = locks.semaphore("gpu", of=3)
    entered, left = threading.Barrier(3, timeout=10), [threading.Event(), threading.Event()]
    guards = {}

    class Wrapper:
        def __enter__(self):
            return gpu.__enter__()

        def __exit__(self, *raised):
            return gpu.__exit__(*raised)

    def work(me):
        with Wrapper() as guards[me]:
            entered.wait()
            assert left[me].wait(10)

    threads = [threading.Thread(target=work, args=(me,)) for me in range(2)]
    for thread in threads:
        thread.start()
    entered.wait()
    for me, other in ((0, "held"), (1, "released")):
        left[me].set()
        threads[me].join(10)
        assert [guards[me].state, guards[1 - me].state] == ["released", other]


def test_a_block_is_left_where_python_has_no_frame(locks):
    lock = locks.lock("stock")
    guard = lock.__enter__()
    import _thread

    _thread.start_new_thread(lock.__exit__, (None, None, None))
    wait_until(lambda: guard.state == "released", "the release")


def test_each_block_leaves_with_its_own_guard(locks):
    gpu = locks.semaphore("gpu", of=3)

    def hold():
        with gpu as guard:
            yield guard

    first, second = hold(), hold()
    guards = [next(first), next(second)]
    with gpu as third:
        first.close()
        assert [guard.state for guard in (*guards, third)] == ["released", "held", "held"]
    assert [guard.state for guard in (*guards, third)] == ["released", "held", "released"]
    second.close()
    assert guards[1].state == "released"


@pytest.mark.parametrize(
    "options", [{"name": 5}, {"name": "a", "fair": "yes"}, {"name": "a", "holder": 7}, {"name": None}], ids=str
)
def test_an_option_of_another_type_is_named(options):
    with latchwork.connect("mem:") as locks:
        with pytest.raises(latchwork.Invalid, match=f"^{list(options)[-1]}: "):
            locks.lock(**options)
    with pytest.raises(latchwork.Invalid, match="^namespace: "):
        latchwork.connect("mem:", namespace=5)


def test_a_bad_name_or_address_is_invalid():
    with pytest.raises(latchwork.Invalid):
        latchwork.connect("nonsense://x")
    with latchwork.connect("mem:") as locks:
        with pytest.raises(latchwork.Invalid):
            locks.lock("").acquire()
        with pytest.raises(latchwork.Invalid, match="names"):
            locks.multi("stock")
        with pytest.raises(latchwork.Invalid, match="permits"):
            locks.semaphore("gpu", of=2, permits=0)


def test_an_unreachable_store_is_a_connection_error():
    with pytest.raises(latchwork.Unreachable) as caught:
        latchwork.connect("redis://127.0.0.1:1")
    assert isinstance(caught.value, ConnectionError) and caught.value.hint


def test_a_closed_manager_refuses(url):
    locks = latchwork.connect(url)
    guard = locks.lock("closing").acquire()
    locks.close()
    assert guard.state == "lost"
    with pytest.raises(latchwork.Closed):
        locks.lock("closing").acquire()
    with pytest.raises(latchwork.Lost):
        guard.release()


def test_guards_and_connections_cannot_be_pickled():
    with latchwork.connect("mem:") as locks, locks.lock("stock") as guard:
        for value in (locks, locks.lock("stock"), guard):
            with pytest.raises(TypeError, match="process"):
                pickle.dumps(value)


def test_the_gil_is_released_while_waiting(locks):
    counted = [0]
    ends = threading.Event()

    def count():
        while not ends.is_set():
            counted[0] += 1

    with locks.lock("stock"):
        counter = threading.Thread(target=count)
        counter.start()
        try:
            before = counted[0]
            with pytest.raises(latchwork.TimedOut):
                locks.lock("stock").acquire(timeout=0.5)
            during = counted[0] - before
        finally:
            ends.set()
            counter.join()
    # A wait that kept the GIL would let it count to nothing.
    assert during > 10_000


def test_a_thousand_holds_beside_a_thread_that_burns_the_gil(redis_server):
    ends = threading.Event()

    def burn():
        while not ends.is_set():
            sum(range(1_000))

    with latchwork.connect(redis_server, namespace="burning") as locks:
        guards = [locks.lock(f"stock/{n}", ttl=4).acquire() for n in range(1_000)]
        burners = [threading.Thread(target=burn) for _ in range(2)]
        for burner in burners:
            burner.start()
        # Longer than the ttl, which is long enough for a machine with much else to do.
        time.sleep(6)
        ends.set()
        for burner in burners:
            burner.join()
        assert [guard.state for guard in guards].count("held") == 1_000
        for guard in guards:
            guard.release()


def test_the_default_holder_is_the_script(tmp_path, redis_server):
    script = tmp_path / "nightly_report.py"
    script.write_text(
        "import sys, latchwork\n"
        "with latchwork.connect(sys.argv[1]) as locks, locks.lock('whose'):\n"
        "    print(locks.show('whose').holders[0].holder)\n"
    )
    import subprocess
    import sys

    said = subprocess.run([sys.executable, script, redis_server], capture_output=True, text=True)
    assert "(nightly_report.py)" in said.stdout and "pid" in said.stdout, said
