"""Each recipe runs as an application would run it."""

import json
import subprocess
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import latchwork

from conftest import wait_until
from servers import free_port, running

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


def post(url):
    with urllib.request.urlopen(urllib.request.Request(url, method="POST"), timeout=120) as answer:
        return answer.read().decode()


def test_workers_of_uvicorn_connect_by_themselves(store):
    port = free_port()
    command = [
        sys.executable, "-m", "uvicorn", "fastapi_orders:app", "--workers", "3", "--port", str(port), "--log-level",
        "warning",
    ]
    with running(command, port, cwd=RECIPES):
        with ThreadPoolExecutor(8) as clients:
            said = [json.loads(it) for it in clients.map(post, [f"http://127.0.0.1:{port}/orders/7/ship"] * 60)]
    # Each had the lock alone: no token was given twice.
    assert len({it["token"] for it in said}) == 60
    with latchwork.connect(namespace="orders") as locks:
        assert locks.show("7").is_free


def test_workers_of_gunicorn_connect_after_their_fork(store, tmp_path, monkeypatch):
    stock, port = tmp_path / "stock", free_port()
    stock.write_text("100")
    monkeypatch.setenv("STOCK", str(stock))
    command = [
        sys.executable, "-m", "gunicorn", "--config", "python:gunicorn_stock", "--bind", f"127.0.0.1:{port}",
        "gunicorn_stock:app",
    ]
    with running(command, port, cwd=RECIPES), latchwork.connect(namespace="shop") as locks:
        with ThreadPoolExecutor(8) as clients:
            with locks.lock("stock"):
                answers = clients.map(post, [f"http://127.0.0.1:{port}/"] * 60)
                # A worker that is alone could serve them all before another one has started.
                wait_until(lambda: len(locks.show("stock").waiters) > 1, "two workers wait")
            said = [it.split() for it in answers]
    assert stock.read_text() == "40"
    assert len({worker for worker, _ in said}) > 1 and len({left for _, left in said}) == 60
    with latchwork.connect(namespace="shop") as locks:
        assert locks.show("stock").is_free


def test_a_worker_of_gunicorn_refuses_what_its_parent_has_connected(store, tmp_path, monkeypatch):
    (tmp_path / "mistaken.py").write_text(
        "import latchwork\n"
        "preload_app, workers = True, 2\n"
        "locks = latchwork.connect()\n"
        "def app(environ, start_response):\n"
        "    try:\n"
        "        locks.lock('stock').acquire(timeout=5).release()\n"
        "        said = 'acquired'\n"
        "    except latchwork.Forked as error:\n"
        "        said = str(error)\n"
        "    start_response('200 OK', [('Content-Type', 'text/plain')])\n"
        "    return [said.encode()]\n"
    )
    port = free_port()
    command = [
        sys.executable, "-m", "gunicorn", "--config", "python:mistaken", "--bind", f"127.0.0.1:{port}", "mistaken:app",
    ]
    with running(command, port, cwd=tmp_path):
        said = post(f"http://127.0.0.1:{port}/")
    assert "connect" in said and "fork" in said, said


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
        worker.communicate(timeout=120)


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


def test_a_pipeline_fences_its_writes_in_postgresql(postgres_server, monkeypatch):
    monkeypatch.syspath_prepend(str(RECIPES))
    import psycopg

    import pipeline

    postgres = postgres_server
    pipeline.prepare(postgres)
    # The lock is in the same database as the data.
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
