"""`latchwork`, for threads: the wheel that was built here."""

import resource
import sys

import latchwork

import roles


class Lock:
    """A guard is the caller's; the roles keep it in the lock."""

    def __init__(self, lock):
        self.lock = lock

    def acquire(self):
        self.guard = self.lock.acquire()

    def release(self):
        self.guard.release()


def connect(url):
    locks = latchwork.connect(url)
    return lambda key: Lock(locks.lock(key))


def held(url, ttl):
    """For each line `take COUNT` takes locks until there are so many, and for `cpu` says the processor time of
    this process; in the end says how many are still held. Its one thread of Python blocks in between."""
    locks, guards = latchwork.connect(url, ttl=int(ttl) / 1000), []
    roles.say("ready")
    for line in sys.stdin:
        words = line.split()
        if words[0] == "take":
            while len(guards) < int(words[1]):
                guards.append(locks.lock(f"stock/{len(guards)}").try_acquire())
            roles.say("taken")
        elif words[0] == "cpu":
            used = resource.getrusage(resource.RUSAGE_SELF)
            roles.say((used.ru_utime + used.ru_stime) * 1e6)
        else:
            break
    roles.say(sum(guard.state == "held" for guard in guards))


if sys.argv[1] == "held":
    held(*sys.argv[2:])
else:
    roles.main(connect)
