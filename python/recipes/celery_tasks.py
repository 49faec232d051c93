"""Tasks of Celery: one at a time for each account, and once a day."""

import os

from celery import Celery
from celery.signals import worker_process_init

import latchwork

app = Celery("shop", broker=os.environ.get("BROKER", "memory://"), backend=os.environ.get("BACKEND", "cache+memory://"))
locks = None


@worker_process_init.connect
def connect(**_):
    # In each worker process, after the fork.
    global locks
    locks = latchwork.connect(namespace="shop")


@app.task(bind=True, max_retries=None)
def settle(self, account, path):
    guard = locks.lock(f"account/{account}", ttl=30).try_acquire()
    if guard is None:
        # Another worker settles this account: come back later, and leave the worker to other tasks.
        raise self.retry(countdown=0.05)
    with guard:
        with open(path) as file:
            value = int(file.read())
        guard.ensure_held()
        with open(path, "w") as file:
            file.write(str(value + 1))
        return str(guard.token)


@app.task
def report():
    with locks.once("report", every="1d") as run:
        return f"sent under {run.token}" if run else str(run.why)
