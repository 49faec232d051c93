"""gunicorn with `preload_app`: the program is loaded before the workers are forked, and each worker connects by itself.

    gunicorn --config python:gunicorn_stock gunicorn_stock:app
"""

import os

import latchwork

preload_app = True
workers = 3
locks = None
path = os.environ.get("STOCK", "stock.txt")


def post_fork(server, worker):
    # In each worker, after the fork. gunicorn calls this function by its name.
    global locks
    locks = latchwork.connect(namespace="shop")


def app(environ, start_response):
    try:
        with locks.lock("stock", ttl=10).acquire(timeout=5) as guard:
            with open(path) as file:
                left = int(file.read()) - 1
            guard.ensure_held()
            with open(path, "w") as file:
                file.write(str(left))
    except latchwork.TimedOut as error:
        start_response("423 Locked", [("Content-Type", "text/plain")])
        return [str(error).encode()]
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [f"{os.getpid()} {left}\n".encode()]
