"""Each recipe runs as an application would run it."""

import glob
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import latchwork

from conftest import free_port, wait_until

RECIPES = Path(__file__).parent.parent / "recipes"


@pytest.fixture
def store(redis_server, monkeypatch, request):
    """The recipes take their store from the environment. Each test has a database of its own."""
    databases = sorted(name for name in globals() if name.startswith("test_"))
    url = f"{redis_server}/{1 + databases.index(request.node.name)}"
    monkeypatch.setenv("LATCHWORK_STORE", url)
    monkeypatch.setenv("PYTHONPATH", str(RECIPES))
    monkeypatch.syspath_prepend(str(RECIPES))
    return url


def processes(count, *command):
    started = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=RECIPES)
        for _ in range(count)
    ]
    ended = [process.communicate(timeout=60) for process in started]
    assert all(process.returncode == 0 for process in started), ended
    return [out for out, _ in ended]


def test_a_handler_of_fastapi_answers_423_while_it_is_held(store):
    from fastapi.testclient import TestClient

    import fastapi_orders

    with TestClient(fastapi_orders.app) as client, latchwork.connect(namespace="orders") as locks:
        first = client.post("/orders/7/ship")
        assert first.status_code == 200 and int(first.json()["token"]) > 2**53
        with locks.lock("7", holder="the other worker"):
            busy = client.post("/orders/7/ship")
        assert busy.status_code == 423 and "the other worker" in busy.json()["detail"]
        again = client.post("/orders/7/ship")
        assert int(again.json()["token"]) > int(first.json()["token"])


def test_a_command_of_django_runs_on_one_host_a_day(store):
    code = (
        "import django; from django.conf import settings; "
        "settings.configure(INSTALLED_APPS=['nightly']); django.setup(); "
        "from django.core.management import call_command; call_command('nightly')"
    )
    said = processes(3, sys.executable, "-c", code)
    assert sum("sent under token" in out for out in said) == 1, said
    assert sum("skipped:" in out for out in said) == 2, said


def test_tasks_of_celery_run_one_at_a_time_and_once_a_day(store, tmp_path, monkeypatch):
    path = tmp_path / "balance"
    path.write_text("0")
    broker = store.rsplit("/", 1)[0]
    monkeypatch.setenv("BROKER", f"{broker}/14")
    monkeypatch.setenv("BACKEND", f"{broker}/15")
    worker = subprocess.Popen(
        [sys.executable, "-m", "celery", "-A", "celery_tasks", "worker", "--concurrency=3", "--loglevel=ERROR"],
        cwd=RECIPES, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )
    try:
        import celery_tasks

        results = [celery_tasks.settle.delay(7, str(path)) for _ in range(30)]
        reports = [celery_tasks.report.delay() for _ in range(3)]
        tokens = [int(result.get(timeout=60)) for result in results]
        assert len(set(tokens)) == 30 and path.read_text() == "30"
        said = [result.get(timeout=60) for result in reports]
        assert sum(it.startswith("sent") for it in said) == 1, said
    finally:
        worker.terminate()
        worker.communicate(timeout=30)


def test_apscheduler_in_three_processes_runs_a_job_once(store):
    said = processes(3, sys.executable, "apscheduler_worker.py")
    assert sum(out.count("sent") for out in said) == 1, said
    assert sum("skipped: " in out for out in said) >= 2, said


def test_the_fixture_of_pytest_lets_one_test_run_at_a_time(store, tmp_path):
    (tmp_path / "conftest.py").write_text("from fixture_of_pytest import alone\n")
    log = tmp_path / "log"
    (tmp_path / "test_it.py").write_text(
        "import time\n"
        "def test_it(alone):\n"
        f"    with open({str(log)!r}, 'a') as log:\n"
        "        log.write('begin\\n'); log.flush(); time.sleep(0.2); alone.ensure_held(); log.write('end\\n')\n"
    )
    processes(3, sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path))
    assert log.read_text() == "begin\nend\n" * 3


@pytest.fixture(scope="module")
def postgres(tmp_path_factory):
    """A PostgreSQL server of its own: its address. It refuses to run as root."""
    programs = sorted(glob.glob("/usr/lib/postgresql/*/bin"))
    assert programs, "postgresql is not installed: cargo xtask setup"
    folder = tmp_path_factory.mktemp("postgres")
    user = {}
    if os.geteuid() == 0:
        import pwd

        entry = pwd.getpwnam("nobody")
        user = {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
        for path in [folder, *folder.parents][:3]:
            os.chmod(path, 0o755)
        os.chown(folder, entry.pw_uid, entry.pw_gid)
    port, data = free_port(), folder / "data"
    initdb = [f"{programs[-1]}/initdb", "-D", data, "-U", "postgres", "--auth=trust", "--no-sync"]
    subprocess.run(initdb, check=True, stdout=subprocess.DEVNULL, cwd=folder, **user)
    server = subprocess.Popen(
        [f"{programs[-1]}/postgres", "-D", data, "-p", str(port), "-k", folder, "-c", "listen_addresses=127.0.0.1"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=folder, **user,
    )
    url = f"postgres://postgres@127.0.0.1:{port}/postgres"

    def answers():
        import psycopg

        try:
            psycopg.connect(url).close()
            return True
        except psycopg.OperationalError:
            return False

    try:
        wait_until(answers, "PostgreSQL answers")
        yield url
    finally:
        # A fast shutdown: it does not wait for connections.
        server.send_signal(signal.SIGINT)
        server.wait(20)


def test_a_pipeline_fences_its_writes_in_postgresql(postgres, monkeypatch):
    monkeypatch.syspath_prepend(str(RECIPES))
    import psycopg

    import pipeline

    pipeline.prepare(postgres)
    # The lock is in the same database as the data.
    latchwork._native.init(postgres).wait()
    with latchwork.connect(postgres) as locks:
        paused = locks.lock("totals", ttl=2).acquire()
        pipeline.write_total(postgres, paused, "2026-01-01", 10)
        locks.force_release("totals")
        with locks.lock("totals").acquire(timeout=5) as guard:
            pipeline.write_total(postgres, guard, "2026-01-01", 20)
            with pytest.raises(latchwork.Fenced):
                pipeline.write_total(postgres, paused, "2026-01-01", 99)
        paused._forget()
    with psycopg.connect(postgres) as connection:
        assert connection.execute("SELECT amount FROM totals").fetchall() == [(20,)]
