"""Drives redis-py's Lock for a test, line by line: `acquire NAME TTL WAIT`, `release`, `owned`.

TTL and WAIT are seconds; a TTL of `-` means none. Each line gets one line in answer.
"""

import sys

import redis
from redis.exceptions import LockError

client = redis.Redis(port=int(sys.argv[1]))
lock = None
print("ready", flush=True)
for line in sys.stdin:
    word, *rest = line.split()
    if word == "acquire":
        name, ttl, wait = rest
        lock = client.lock(name, timeout=None if ttl == "-" else float(ttl), sleep=0.01)
        answer = lock.acquire(blocking=float(wait) > 0, blocking_timeout=float(wait) or None)
    elif word == "owned":
        answer = lock.owned()
    else:
        try:
            lock.release()
            answer = "released"
        except LockError as error:
            answer = "refused " + type(error).__name__
    print(answer, flush=True)
