"""`filelock.FileLock`: a file for each key; polls every 50 ms."""

import os

import filelock

import roles


def connect(url):
    folder = url.removeprefix("file://") + "-filelock"
    os.makedirs(folder, exist_ok=True)
    return lambda key: filelock.FileLock(f"{folder}/{key.replace('/', '-')}.lock")


roles.main(connect)
