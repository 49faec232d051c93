"""What a package costs beside its cycles: `costs.py MODULE URL` says how many milliseconds its import takes, and the resident
memory in kilobytes after the import, after 2,000 cycles, and after 20,000 more."""

import importlib
import sys
import time

MAKES = {
    "latchwork": lambda module, url: module.connect(url).lock,
    "redis": lambda module, url: lambda key, client=module.Redis.from_url(url): client.lock(key, timeout=30),
    "redis_lock": lambda module, url: lambda key: module.Lock(
        sys.modules["redis"].Redis.from_url(url), key, expire=30
    ),
}


def resident():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))


name, url = sys.argv[1:]
start = time.perf_counter()
module = importlib.import_module(name)
took = (time.perf_counter() - start) * 1000
memory = [resident()]
if name in MAKES:
    lock = MAKES[name](module, url)("bench/costs")
    for cycles in 2_000, 20_000:
        for _ in range(cycles):
            with lock:
                pass
        memory.append(resident())
print(took, *memory)
