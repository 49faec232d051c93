"""The modules for frameworks, in the frameworks: with their workers, their databases and real servers."""

import contextlib
import os
import pathlib
import subprocess
import sys
import textwrap
import threading

import pytest

import latchwork
from latchwork import fence

from servers import wait_until


@pytest.fixture
def store(redis_server, monkeypatch):
    """The default store: a database of its own for the tests of this file, which do not share keys."""
    monkeypatch.setenv("LATCHWORK_STORE", f"{redis_server}/13")
    return f"{redis_server}/13"


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Writes a module that workers can import."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(name, code):
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(code))

    return write


@contextlib.contextmanager
def worker(*command, cwd):
    process = subprocess.Popen(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=120)


def test_a_connection_of_the_process_is_made_once_and_again_after_a_fork(store):
    from latchwork.frameworks import per_process

    locks = per_process(lambda: latchwork.connect(namespace="frameworks"))
    assert locks() is locks()
    child = os.fork()
    if not child:
        with locks().lock("child") as guard:
            pass
        os._exit(guard.key != "frameworks:child")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    with locks().lock("child"):
        pass


# FastAPI.


@pytest.fixture
def orders(store):
    from fastapi import Depends, FastAPI
    from fastapi.testclient import TestClient

    from latchwork import AsyncGuard
    from latchwork.frameworks.fastapi import lock

    app = FastAPI()

    @app.post("/orders/{order}/ship")
    async def ship(order: int, guard: AsyncGuard = Depends(lock("order/{order}", types={"order": int}))):
        return {"key": guard.key, "token": str(guard.ensure_held())}

    @app.post("/reports")
    def report(guard: AsyncGuard = Depends(lock("report/{day}", timeout=20, fair=True), scope="function")):
        return {"key": guard.key}

    @app.post("/lost")
    async def lost(guard: AsyncGuard = Depends(lock("lost", ttl=1), scope="function")):
        import asyncio

        await asyncio.to_thread(force_release, "lost")
        await guard.lost
        return {"key": guard.ensure_held()}

    @app.post("/away")
    def away(guard: AsyncGuard = Depends(lock("away", locks=lambda request: request.app.state.locks))):
        return {}

    with TestClient(app, raise_server_exceptions=False) as client:
        yield client


def force_release(name):
    with latchwork.connect() as locks:
        locks.force_release(name)


def test_a_handler_holds_the_lock_of_its_path(orders):
    with latchwork.lock("order/7", holder="the other worker"):
        busy = orders.post("/orders/007/ship")
        assert busy.status_code == 423 and "the other worker" in busy.json()["detail"]
        assert orders.post("/orders/8/ship").json()["key"] == "order/8"
    first, again = orders.post("/orders/7/ship").json(), orders.post("/orders/7/ship").json()
    assert first["key"] == "order/7" and int(again["token"]) > int(first["token"])
    assert orders.post("/orders/seven/ship").status_code == 422


def test_a_handler_waits_for_the_lock_of_its_query(orders):
    assert orders.post("/reports").status_code == 422
    guard = latchwork.lock("report/monday", fair=True).acquire()
    with latchwork.connect() as locks:

        def release():
            wait_until(lambda: locks.show("report/monday").waiters, "it waits")
            guard.release()

        threading.Thread(target=release).start()
        assert orders.post("/reports?day=monday").json() == {"key": "report/monday"}
        # The scope `function`: before the answer.
        assert locks.show("report/monday").is_free


def test_a_handler_that_has_lost_its_lock_answers_503(orders):
    lost = orders.post("/lost")
    assert lost.status_code == 503 and "lost" in lost.json()["detail"]


def test_a_handler_whose_store_does_not_answer_answers_503(orders):
    from latchwork import aio

    from conftest import free_port

    class Away:
        def lock(self, name, **options):
            return self

        async def acquire(self, timeout):
            await aio.connect(f"redis://127.0.0.1:{free_port()}")

    orders.app.state.locks = Away()
    away = orders.post("/away")
    assert away.status_code == 503 and "127.0.0.1" in away.json()["detail"]


def test_a_name_that_is_no_parameter_is_refused():
    from latchwork.frameworks.fastapi import lock

    for name in ("{}", "{order.id}", "{0}"):
        with pytest.raises(latchwork.Invalid):
            lock(name)


# Django.


@pytest.fixture(scope="module")
def django(postgres_server, redis_server, tmp_path_factory):
    """Django with its ORM on PostgreSQL and SQLite, and an app with a model and two commands."""
    folder = tmp_path_factory.mktemp("django")
    commands = folder / "stock/management/commands"
    commands.mkdir(parents=True)
    for package in (folder / "stock", folder / "stock/management", commands):
        (package / "__init__.py").write_text("")
    (folder / "stock/models.py").write_text(
        "from django.db import models\n"
        "class Stock(models.Model):\n"
        "    left = models.IntegerField()\n"
        "    token = models.PositiveBigIntegerField(default=0)\n"
    )
    base = "from latchwork.frameworks.django import LockedCommand\nclass Command(LockedCommand):\n"
    handle = "    def handle(self, *args, **options):\n        self.stdout.write(f'ran under {self.guard.ensure_held()}')\n"
    (commands / "nightly.py").write_text(base + "    every, tz = '1d', 'Europe/Berlin'\n" + handle)
    (commands / "rebuild.py").write_text(base + "    lock_name = 'the-rebuild'\n" + handle)
    sys.path.insert(0, str(folder))
    from urllib.parse import urlsplit

    at = urlsplit(postgres_server)
    postgres = {"ENGINE": "django.db.backends.postgresql", "NAME": "postgres", "USER": "postgres", "HOST": at.hostname, "PORT": at.port}
    sqlite = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(folder / "db")}
    import django
    from django.conf import settings

    settings.configure(
        INSTALLED_APPS=["stock"], DATABASES={"default": postgres, "sqlite": sqlite}, USE_TZ=True, TIME_ZONE="Europe/Berlin",
        LATCHWORK={"URL": f"{redis_server}/12", "NAMESPACE": "shop", "TTL": 20},
    )
    django.setup()
    from django.db import connections

    from stock.models import Stock

    for using in ("default", "sqlite"):
        with connections[using].schema_editor() as editor:
            editor.create_model(Stock)
        with connections[using].cursor() as cursor:
            fence.SqlFence(connections[using].vendor, "shop_fences").create(cursor)
    yield Stock
    connections.close_all()
    sys.path.remove(str(folder))


def said(command):
    import io

    from django.core.management import call_command

    out = io.StringIO()
    call_command(command, stdout=out)
    return out.getvalue()


def test_a_command_of_django_runs_once_a_period_or_alone(django):
    from django.core.management import CommandError

    from latchwork.frameworks.django import lock, locks, once

    assert said("nightly").startswith("ran under ") and said("nightly").startswith("skipped: ")
    with lock("the-rebuild") as guard:
        assert guard.key == "shop:the-rebuild"
        with pytest.raises(CommandError, match="shop:the-rebuild"):
            said("rebuild")
    assert said("rebuild").startswith("ran under ") and locks().show("the-rebuild").is_free

    @once("mail", every="1h")
    def mail():
        return "sent"

    assert mail().value == "sent" and mail().skipped.why == "done"


def test_a_setting_that_is_no_parameter_is_refused(django):
    from django.core.exceptions import ImproperlyConfigured
    from django.test.utils import override_settings

    from latchwork.frameworks.django import _connect

    with override_settings(LATCHWORK={"ADDRESS": "mem:"}), pytest.raises(ImproperlyConfigured, match="address"):
        _connect()


@pytest.mark.parametrize("using", ["default", "sqlite"])
def test_the_orm_of_django_refuses_a_superseded_holder(django, using):
    from django.db import transaction

    from latchwork.frameworks.django import check_fence, fenced_update

    def write(token, left):
        with transaction.atomic(using=using):
            check_fence("stock/1", token, using=using, table="shop_fences")
            django.objects.using(using).update_or_create(id=1, defaults={"left": left})

    write(7, 20)
    with pytest.raises(latchwork.Fenced):
        write(6, 99)
    with pytest.raises(transaction.TransactionManagementError):
        check_fence("stock/1", 8, using=using, table="shop_fences")
    rows = django.objects.using(using).filter(id=1)
    assert rows.get().left == 20
    assert fenced_update(rows, 9, left=19) == 1 and fenced_update(rows, 9, left=18) == 1
    with pytest.raises(latchwork.Fenced):
        fenced_update(rows, 8, left=99)
    with pytest.raises(latchwork.Fenced, match="no such row"):
        fenced_update(rows.filter(id=2), 10, left=99)
    assert (rows.get().left, rows.get().token) == (18, 9)


# SQLAlchemy.


@pytest.mark.parametrize("database", ["postgresql", "sqlite"])
def test_sqlalchemy_refuses_a_superseded_holder(postgres_server, tmp_path, database):
    from sqlalchemy import BigInteger, create_engine
    from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

    from latchwork.frameworks.sqlalchemy import check_fence, create_fences, fenced_update

    class Base(DeclarativeBase):
        pass

    class Stock(Base):
        __tablename__ = "sqlalchemy_stock"
        id: Mapped[int] = mapped_column(primary_key=True)
        left: Mapped[int]
        token: Mapped[int] = mapped_column(BigInteger, default=0)

    address = postgres_server.replace("postgres://", "postgresql+psycopg://") if database == "postgresql" else f"sqlite:///{tmp_path}/db"
    engine = create_engine(address)
    Base.metadata.create_all(engine)
    with engine.begin() as connection:
        create_fences(connection, "sqlalchemy_fences")

    def write(token, left):
        with Session(engine) as session, session.begin():
            check_fence(session, "stock/1", token, "sqlalchemy_fences")
            session.merge(Stock(id=1, left=left, token=0))

    write(7, 20)
    with pytest.raises(latchwork.Fenced):
        write(6, 99)
    for entity, left in ((Stock, 19), (Stock.__table__, 18)):
        with Session(engine) as session, session.begin():
            assert fenced_update(session, entity, 9, Stock.id == 1, left=left) == 1
        with Session(engine) as session, pytest.raises(latchwork.Fenced), session.begin():
            fenced_update(session, entity, 8, Stock.id == 1, left=99)
    with Session(engine) as session:
        stock = session.get(Stock, 1)
        assert (stock.left, stock.token) == (18, 9)
    engine.dispose()


# Celery and RQ: a counter in a file loses steps if two jobs run at a time.

COUNTED = """
        def count(path):
            with open(path) as file:
                value = int(file.read())
            time.sleep(0.02)
            with open(path, "w") as file:
                file.write(str(value + 1))
            return value
"""


def test_tasks_of_celery_wait_in_the_queue_for_their_lock(store, module, tmp_path, monkeypatch):
    path = tmp_path / "count"
    path.write_text("0")
    server = store.rpartition("/")[0]
    module("locked_tasks", f"""
        import time
        from celery import Celery
        from latchwork.frameworks.celery import LockedTask

        app = Celery("shop", broker="{server}/10", backend="{server}/11")
        {COUNTED}
        @app.task(base=LockedTask, lock_name="account/{{account}}", lock_retry=0.05)
        def settle(account, path):
            settle.guard.ensure_held()
            return count(path), settle.request.retries

        @app.task(base=LockedTask, bind=True, lock_name="account/{{account}}", lock_retry=None)
        def hurry(self, account):
            return self.guard.key
    """)
    command = [sys.executable, "-m", "celery", "-A", "locked_tasks", "worker", "--concurrency=3", "--loglevel=ERROR"]
    with worker(*command, cwd=tmp_path):
        import locked_tasks

        with latchwork.lock("account/7"):
            waiting = locked_tasks.settle.delay(7, path=str(path))
            wait_until(lambda: waiting.state == "RETRY", "it is retried")
            busy = locked_tasks.hurry.delay(7)
            with pytest.raises(Exception, match="account/7"):
                busy.get(timeout=60)
            with pytest.raises(latchwork.TimedOut):
                locked_tasks.settle(7, str(path))
        results = [waiting, *(locked_tasks.settle.delay(7, str(path)) for _ in range(20))]
        said = [result.get(timeout=60) for result in results]
        # The rounds in the queue are no retries of the task.
        assert sorted(value for value, _ in said) == list(range(21)) and {retries for _, retries in said} == {0}
        assert path.read_text() == "21" and locked_tasks.hurry.delay(8).get(timeout=60) == "account/8"
    with latchwork.connect() as locks:
        assert locks.show("account/7").is_free


def test_jobs_of_rq_wait_in_the_queue_for_their_lock(store, module, tmp_path):
    import redis
    from rq import Queue

    path = tmp_path / "count"
    path.write_text("0")
    server = f"{store.rpartition('/')[0]}/9"
    module("locked_jobs", f"""
        import time
        import latchwork
        from latchwork.frameworks.rq import locked
        {COUNTED}
        @locked("account/{{account}}")
        def settle(account, path, guard=None):
            guard.ensure_held()
            return count(path)

        @locked("account/{{account}}", retry=None)
        def hurry(account):
            return latchwork.lock("account/7").try_acquire()
    """)
    command = [pathlib.Path(sys.executable).parent / "rq", "worker", "--with-scheduler", "--quiet", "--url", server, "default"]
    with contextlib.ExitStack() as running:
        for _ in range(2):
            running.enter_context(worker(*command, cwd=tmp_path))
        import locked_jobs

        client = running.enter_context(redis.Redis.from_url(server))
        queue = Queue(connection=client)
        with latchwork.lock("account/7"):
            waiting = queue.enqueue(locked_jobs.settle, 7, path=str(path))
            wait_until(lambda: waiting.get_status(refresh=True) == "scheduled", "it is scheduled")
            busy = queue.enqueue(locked_jobs.hurry, 7)
            wait_until(lambda: busy.get_status(refresh=True) == "failed", "it fails")
            assert "account/7" in busy.latest_result().exc_string
            other = queue.enqueue(locked_jobs.hurry, 8)
            # It looks while account/7 is held: a guard that it got would be held for a ttl after the end of its process.
            wait_until(lambda: other.get_status(refresh=True) == "finished", "it runs")
            assert other.return_value() is None
        jobs = [waiting, *(queue.enqueue(locked_jobs.settle, 7, str(path)) for _ in range(6))]
        for job in jobs:
            wait_until(lambda: job.get_status(refresh=True) == "finished", "it runs")
        assert sorted(job.return_value() for job in jobs) == list(range(7)) and path.read_text() == "7"
    with latchwork.connect() as locks:
        assert locks.show("account/7").is_free


# Airflow, in an environment of its own.

DAGS = """
import latchwork
from airflow.sdk import DAG, BaseOperator, task
from latchwork.frameworks.airflow import Locked, locked

class Load(BaseOperator):
    def execute(self, context):
        assert self.guard.key == "warehouse/stock", self.guard

class LockedLoad(Locked, Load):
    lock_name = "warehouse/{params[table]}"

class LockedSkip(Locked, Load):
    lock_name = "held"
    lock_skip = True

with DAG("warehouse", schedule=None, params={"table": "stock"}) as dag:

    @task
    @locked("load/{table}")
    def load(table, guard=None):
        assert guard.key == "load/stock", guard

    @task
    @locked("held", skip=True)
    def skips():
        raise AssertionError("it is held")

    @task
    @locked("held")
    def fails():
        raise AssertionError("it is held")

    LockedLoad(task_id="operator"), LockedSkip(task_id="skips_too"), load("stock"), skips(), fails()

if __name__ == "__main__":
    with latchwork.lock("held"):
        run = dag.test()
    print("states:", *sorted(f"{it.task_id}={it.state}" for it in run.get_task_instances()))
"""


def test_tasks_of_airflow_run_alone(tmp_path, monkeypatch):
    programs = pathlib.Path(sys.prefix).parent / "airflow/bin"
    dags = tmp_path / "home/dags"
    dags.mkdir(parents=True)
    (dags / "warehouse.py").write_text(DAGS)
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("AIRFLOW__CORE__LOAD_EXAMPLES", "False")
    monkeypatch.setenv("LATCHWORK_STORE", f"file://{tmp_path}/locks")
    subprocess.run([programs / "airflow", "db", "migrate"], check=True, capture_output=True)
    said = subprocess.run([programs / "python", dags / "warehouse.py"], capture_output=True, text=True)
    states = "states: fails=failed load=success operator=success skips=skipped skips_too=skipped"
    assert said.stdout.splitlines()[-1:] == [states], said.stdout + said.stderr
    assert "TimedOut" in said.stdout, said.stdout


def test_a_coroutine_function_is_no_job():
    from latchwork.frameworks.rq import locked

    async def settle(account):
        pass

    with pytest.raises(TypeError, match="coroutine"):
        locked("account/{account}")(settle)
