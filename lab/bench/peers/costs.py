"""What a package costs beside its cycles: `costs.py MODULE URL` says how many milliseconds its import takes, and the resident
memory in kilobytes after the import, after 2,000 cycles, and after 20,000 more."""

import importlib
import sys
import time


def latchwork(url):
    return sys.modules["latchwork"].connect(url).lock


def redis(url):
    client = sys.modules["redis"].Redis.from_url(url)
    return lambda key: client.lock(key, timeout=30)


def redis_lock(url):
    client = sys.modules["redis"].Redis.from_url(url)
    return lambda key: sys.modules["redis_lock"].Lock(client, key, expire=30)


def resident():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))


module, url = sys.argv[1:]
start = time.perf_counter()
importlib.import_module(module)
took = (time.perf_counter() - start) * 1000
memory = [resident()]
if module in globals():
    lock = globals()[module](url)("bench/costs")
    for cycles in 2_000, 20_000:
        for _ in range(cycles):
            with lock:
                pass
        memory.append(resident())
print(took, *memory)
