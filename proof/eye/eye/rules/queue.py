"""`fair` and `handed-on`: contract.md, B3 and B7; time.md, "Trying and waiting" and "The patience of the record"."""

from collections import defaultdict

from ..story import Spans

# A key that is blocked for so many times what a fault and a lost claim may cost is blocked by something else.
STUCK = 4


def fair(book, story, bounds):
    """A fair attempt that has a place is not overtaken by one that was tried after that."""
    for key, holds in story.holds.items():
        places = sorted((a for a in story.attempts.values() if a.blocked and a.key == key),
                        key=lambda a: a.blocked.time)
        for hold in holds:
            if not hold.first.values["fair"] or hold.is_handover:
                continue
            for waiter in places:
                if waiter.blocked.time >= hold.first.time:
                    break
                if waiter.process == hold.process or not _waited(waiter, hold.granted.time, bounds, story):
                    continue
                book.look()
                if not _disturbed(story, waiter.blocked.time, hold.granted.time, bounds):
                    book.find(hold.granted, f"{hold} overtook {waiter}, which had its place before it tried", hold, waiter)
            book.look()


def _waited(waiter, time, bounds, story):
    """Whether it waited until then and for longer: an end at about this time may have come first."""
    if waiter.granted:
        return waiter.granted.time > time
    end = waiter.over() or story.last_time
    return end > time + bounds.slack


def _disturbed(story, begin, end, bounds):
    """Places end with their owners, and a waiter that does not come is passed by. An eviction moves no place."""
    after = bounds.settle
    return (any(first < end and until + after > begin for fault, first, until in story.faults if fault != "evict")
            or any(first < end and until + after > begin for _, first, until in story.stops)
            or any(begin - after < time < end for time in story.kills.values())
            or any(spans.within(begin, end) > bounds.slack for spans in story.pauses.values()))


def handed_on(book, story, bounds):
    """A key that nobody holds is granted in bounded time, if somebody waits for it."""
    waiters = defaultdict(list)
    for attempt in story.attempts.values():
        if not attempt.first.values["waits"] or attempt.first.values["several"] or attempt.key.startswith(bounds.cut or "-"):
            continue
        if attempt.beside:
            _gaps(book, story, bounds, _others(story, attempt), [attempt])
        else:
            waiters[attempt.key].append(attempt)
    granted = defaultdict(list)
    for hold in story.all_holds():
        if not hold.is_handover:
            granted[hold.process].append(hold)
    for key, waiting in waiters.items():
        _gaps(book, story, bounds, story.holds.get(key, []), waiting, granted)


def _others(story, attempt):
    """The holds near an upgrade or a downgrade, without the one that it replaces: it waits for these alone (contract.md, B16)."""
    end = attempt.granted.time if attempt.granted else attempt.over() or story.last_time
    return [hold for hold in story.holds[attempt.key] if hold is not attempt.beside
            and hold.granted.time <= end and hold.belief_end() >= attempt.first.time]


def _gaps(book, story, bounds, holds, waiting, served=None):
    free, last = story.first_time, None
    waiting.sort(key=lambda attempt: attempt.first.time)
    for hold in holds + [None]:
        granted = hold.granted.time if hold else story.last_time
        bound = _bound(bounds, last)
        if granted - free > bounds.slack:
            waiter = _waits_through(story, waiting, free, granted, bound)
            if waiter:
                book.find(waiter.lines[-1], f"{waiter} waits for {waiter.key}, which nobody holds, "
                          f"for {(granted - free) / 1e6:.0f} ms", waiter, *([last] if last else []), time=free)
            elif served:
                _stuck(book, story, bounds, free, granted, bound, waiting, served)
        book.look()
        if hold:
            end = hold.belief_end()
            if end > free or last is None:
                free, last = max(end, free), hold


def _stuck(book, story, bounds, free, granted, bound, waiting, served):
    """Also while faults go on, a key does not stay blocked for long if the store grants other keys to those that wait for it."""
    most = (bound + bounds.settle) * STUCK
    if granted - free <= most:
        return
    waits = Spans()
    for attempt in waiting:
        begin, end = max(free, attempt.first.time), min(granted, attempt.waited_until(story.last_time))
        if begin < end and any(begin < hold.granted.time < end and hold.key != attempt.key for hold in served[attempt.process]):
            waits.add(begin, end)
    blocked = waits.within(free, granted)
    if blocked > most:
        book.find(waiting[0].lines[-1], f"nobody held {waiting[0].key} for {(granted - free) / 1e6:.0f} ms, and for {blocked / 1e6:.0f} ms of that "
                  "processes waited that the store granted other keys", time=free)


def _bound(bounds, last):
    bound = bounds.patience + bounds.check_every + bounds.op_timeout + bounds.travel + bounds.slack
    if last and not (last.released and last.released.values["answer"] == "yes"):
        bound += max(bounds.ends, bounds.takeover)  # nobody has told the store: the lease ends by itself
    return bound


def _waits_through(story, waiting, free, granted, bound):
    """A waiter that was kept waiting for longer than the bound, faults, stops and stalls apart."""
    for attempt in waiting:
        begin = max(free, attempt.first.time)
        end = attempt.granted.time if attempt.granted else attempt.over() or story.last_time
        end = min(end, granted)
        if end - begin <= bound:
            continue
        for _, first, until in story.faults:
            if first < end and until > begin:
                begin = until
        for _, first, until in story.stops:
            if first < end and until > begin:
                begin = until  # a stopped waiter may have been the next one
        for time in story.kills.values():
            if begin - bound < time < end:
                begin = max(begin, time + bound)
        if end - begin - story.paused(attempt.process, begin, end) > bound:
            return attempt
    return None
