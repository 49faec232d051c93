"""`release-counts`, `takeover`, `unfairness` and `done-once`: when a key passes on (contract.md, B3, B7; docs/history.md, "The key of a run")."""

from bisect import bisect_right
from collections import defaultdict

class Waits:
    """The attempts that wait for each key, ready to be asked who waited within a stretch of time."""

    def __init__(self, story):
        self.last = story.last_time
        self.of = defaultdict(list)
        for attempt in sorted(story.attempts.values(), key=lambda attempt: attempt.first.time):
            # One of several keys may be free, and its waiter waits for another; an upgrade waits for readers.
            if attempt.first.values["waits"] and not attempt.first.values["several"] and not attempt.beside:
                self.of[attempt.key].append(attempt)
        self.tried = {key: [attempt.first.time for attempt in waiting] for key, waiting in self.of.items()}
        self.longest = {key: max(a.waited_until(self.last) - a.first.time for a in waiting) for key, waiting in self.of.items()}

    def within(self, key, begin, end):
        """Each of them, with the part of its wait that lies in this stretch."""
        for index in range(bisect_right(self.tried.get(key, ()), end) - 1, -1, -1):
            attempt = self.of[key][index]
            if attempt.first.time + self.longest[key] < begin:
                break
            first, until = max(begin, attempt.first.time), min(end, attempt.waited_until(self.last))
            if first <= until:
                yield attempt, first, until


def release_counts(book, story, bounds):
    """A release lets the next one in, and not the end of a ttl; so does a guard that is dropped."""
    waits, broken = Waits(story), story.disturbed(bounds.settle)
    for event in story.evictions:
        broken.add(event.values["asked"], event.time + bounds.settle)
    # What is upgraded or downgraded goes on under another number.
    replaced = {attempt.beside for attempt in story.attempts.values() if attempt.beside}
    for key, holds in story.holds.items():
        relied_on = 0
        for index, hold in enumerate(holds):
            before, relied_on = relied_on, max(relied_on, hold.belief_end())
            free = _freed(hold)
            if free is None or hold in replaced or key.startswith(bounds.cut or "-"):
                continue
            following = holds[index + 1 : index + 2]
            beside = index + 1
            while beside < len(holds) and holds[beside].granted.time <= free and holds[beside].belief_end() <= free:
                beside += 1
            # Beside others that share the key, the end of one hold frees nothing.
            if before > free or beside < len(holds) and holds[beside].granted.time <= free:
                continue
            granted = following[0].granted.time if following else story.last_time
            waited = [(until - first, first, until, waiter) for waiter, first, until in waits.within(key, free, granted)
                      if not broken.touch(first, until)]
            if waited or following and granted <= free:
                book.look()
            if waited:
                late, first, until, waiter = max(waited, key=lambda wait: wait[0])
                if late > bounds.wake and late - story.stood(first, until) > bounds.wake:
                    book.find(waiter.lines[-1], f"{hold} gave up {key}, and {waiter} waited {late / 1e6:.0f} ms longer", hold, waiter, time=until)


def _freed(hold):
    """Since when the key should be free, if its holder gave it up."""
    if hold.released and hold.released.values["answer"] == "yes" and hold.releasing:
        return hold.released.time
    if hold.releasing and hold.releasing.values["how"] == "drop" and hold.releasing.time < hold.valid_until:
        return hold.releasing.time
    return None


def takeover(book, story, bounds):
    """The key that a killed process held passes on in time."""
    waits, broken, kills = Waits(story), story.disturbed(bounds.settle, but=("kill",)), sorted(story.kills.values())
    for key, holds in story.holds.items():
        for index, hold in enumerate(holds):
            killed = hold.killed
            if (killed is None or not hold.granted.time <= killed < hold.valid_until or hold.releasing or hold.lost
                    or hold.mode.word not in ("exclusive", "write") or key.startswith(bounds.cut or "-")):
                continue
            until = next((after.granted.time for after in holds[index + 1 :] if after.granted.time > killed), story.last_time)
            # A process that was killed meanwhile may have been the next.
            begin = max([killed] + kills[: bisect_right(kills, until)])
            waited = [(end - first, first, end, waiter) for waiter, first, end in waits.within(key, begin, until)
                      if waiter.process != hold.process and not broken.touch(first, end)]
            if waited:
                book.look()
                late, first, end, waiter = max(waited, key=lambda wait: wait[0])
                if late - story.all_paused(first, end) > bounds.takeover:
                    book.find(waiter.lines[-1], f"{hold.process} was killed with {key}, and {waiter} waited {late / 1e6:.0f} ms for it", hold, waiter, time=end)


def unfairness(book, story, bounds):
    """Handover inside processes keeps another one waiting for a slice and the longest hold of each of the others, at most."""
    broken, since, longest = story.disturbed(bounds.settle), {}, defaultdict(int)
    for hold in story.all_holds():
        if not hold.first.values["fair"]:
            end = hold.released or hold.releasing
            longest[hold.key] = max(longest[hold.key], (end.time if end else hold.belief_end()) - hold.granted.time)
    others = _competitors(story) - 1
    for event in story.events:
        if event.name == "waiting":
            since.setdefault((event.process, event.values["key"]), event.time)
        if event.name not in ("gave_up", "granted"):
            continue
        attempt = story.attempts.get((event.process, event.values["attempt"]))
        # Those that wait in the queue of their process, for this key alone.
        if not attempt or attempt.first.values["fair"] or attempt.first.values["several"] or attempt.mode.word != "exclusive":
            continue
        begin = since.pop((event.process, attempt.key), None)
        if event.name == "gave_up" or begin is None or broken.touch(begin, event.time):
            continue
        book.look()
        waited, most = event.time - begin, (bounds.slice + longest[attempt.key] + bounds.travel) * others + bounds.travel + bounds.slack
        if waited > most and waited - story.stood(begin, event.time) > most:
            book.find(event, f"{event.process} waited {waited / 1e6:.0f} ms for {attempt.key}, more than {most / 1e6:.0f} ms", attempt)


def _competitors(story):
    """The workers, each of which has one queue, and the tasks of other clients, each of which waits for itself."""
    tasks = {(process.split(".")[0], None if process.startswith("w") else attempt.first.task)
             for (process, _), attempt in story.attempts.items()}
    return len(tasks)


def done_once(book, story, bounds):
    """A task that was done is not begun again in its period."""
    for key, holds in story.holds.items():
        done = next((h for h in holds if h.released and h.released.values["answer"] == "yes"), None) if "@" in key else None
        if done:
            book.look()
            for hold in holds:
                if hold.granted.time > done.released.time:
                    book.find(hold.granted, f"{hold} began {key}, which {done} had done", done, hold)
