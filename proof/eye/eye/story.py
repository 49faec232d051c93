"""Joins the lines of a history into the story of each attempt, and into what happened to the processes."""

from bisect import bisect_right
from collections import defaultdict

from .reading import LARGEST, PERMITS, Unreadable

MS = 1_000_000
HANDOVERS = 1 << 10


def drift(ttl):
    """time.md, "Validity": drift(ttl) = ttl / 100 + 2 ms."""
    return ttl // 100 + 2 * MS


class Mode:
    """How an attempt holds its key. `take` of `limit`; exclusive and write take all."""

    __slots__ = ("word", "shape", "take", "limit")

    def __init__(self, word):
        self.word = word
        permits = PERMITS.match(word)
        if permits:
            self.take, self.limit = int(permits.group(1)), int(permits.group(2))
            self.shape = "permits"
        elif word in ("exclusive", "read", "write"):
            self.take, self.limit = (0, 1) if word == "read" else (1, 1)
            self.shape = "exclusive" if word == "exclusive" else "read-write"
        else:
            raise ValueError(f"{word!r} is no mode")

    def excludes(self, other, limit):
        """contract.md, B1 and B12. `limit` is the largest that was asked with so far, if they are permits."""
        if self.shape != other.shape:
            return True
        if self.shape == "permits":
            return self.take + other.take > limit
        return not self.word == other.word == "read"


class Attempt:
    """An attempt of a process: its lines in order, and those that happen once."""

    __slots__ = ("process", "number", "lines", "first", "mode", "beside", "granted", "gave_up", "blocked",
                 "lost", "releasing", "released", "validities", "killed", "writes", "judged", "end")

    def __init__(self, process, number):
        self.process = process
        self.number = number
        self.lines = []
        self.first = None
        self.mode = None
        self.beside = None
        self.granted = self.gave_up = self.blocked = None
        self.lost = self.releasing = self.released = None
        self.validities = []
        self.writes = []
        self.judged = []
        self.killed = None
        self.end = None

    @property
    def key(self):
        return self.first.values["key"]

    @property
    def token(self):
        return self.granted.values["token"]

    @property
    def grant(self):
        return self.token // HANDOVERS

    @property
    def is_handover(self):
        return self.token % HANDOVERS != 0

    @property
    def valid_until(self):
        """The last validity that the holder has seen."""
        return self.validities[-1][1]

    def validity_at(self, time):
        """The validity that the holder knew at this time."""
        for seen, valid_until in reversed(self.validities):
            if seen <= time:
                return valid_until
        return None

    def trusted_until(self, count=None):
        """The end of the last of so many validities. What a clock that had stood still took back was trusted until then, at the most."""
        known = self.validities[:count]
        taken_back = [min(before, time) for (_, before), (time, after) in zip(known, known[1:]) if after < before]
        return max([known[-1][1]] + taken_back)

    def belief_end(self):
        """The earliest of the validity's end, `releasing`, `lost`, and the kill."""
        ends = [self.valid_until]
        if self.releasing:
            ends.append(self.releasing.time)
        if self.lost:
            ends.append(min(self.lost.time, self.lost.values["since"]))
        if self.killed is not None:
            ends.append(self.killed)
        return min(ends)

    def over(self):
        """When the attempt has ended without doubt, or None."""
        for event in (self.gave_up, self.releasing, self.lost):
            if event:
                return event.time
        return self.killed

    def waited_until(self, last):
        """When it ceased to wait; at the latest then."""
        return self.granted.time if self.granted else self.over() or last

    def __str__(self):
        return f"{self.process} attempt {self.number}"


class Spans:
    """Stretches of time; asks how much of another stretch they cover."""

    def __init__(self, spans=()):
        self.spans = list(spans)
        self._apart = None

    def add(self, begin, end):
        self.spans.append((begin, end))
        self._apart = None

    def _near(self, begin, end):
        """Those that touch this stretch, none of which touches another."""
        if self._apart is None:
            self._apart = []
            for first, until in sorted(self.spans):
                if self._apart and first <= self._apart[-1][1]:
                    first, last = self._apart.pop()
                    until = max(until, last)
                self._apart.append((first, until))
        index = max(0, bisect_right(self._apart, (begin, begin)) - 1)
        while index < len(self._apart) and self._apart[index][0] <= end:
            if self._apart[index][1] >= begin:
                yield self._apart[index]
            index += 1

    def within(self, begin, end):
        return sum(max(0, min(until, end) - max(first, begin)) for first, until in self._near(begin, end))

    def touch(self, begin, end):
        return any(True for _ in self._near(begin, end))


class Story:
    """A whole history. `odd` collects what no attempt may do, as (event, text)."""

    def __init__(self, events):
        self.events = events
        self.first_time, self.last_time = events[0].time, events[-1].time
        self.attempts = {}
        self.odd = []
        self.kills = {}
        self.ends = {}
        self.starts = {}
        self.pauses = defaultdict(Spans)
        self.starved = Spans()
        self.stops = []
        self.faults = []
        self.evictions = []
        self.kept = []
        self.judged = []
        self.alarms = []
        self.waiting = []
        self.inspected = []
        self.ghosts = []
        self.lines_of = defaultdict(int)
        self._open_stops = {}
        self._open_faults = {}
        for event in events:
            take = _TAKE.get(event.name)
            if take:
                take(self, event)
            else:
                self._of_attempt(event)
        for whom, begin in self._open_stops.items():
            self._stop(whom, begin, self.last_time)
        for fault, begin in self._open_faults.items():
            self.faults.append((fault, begin, self.last_time))
        for attempt in self.attempts.values():
            attempt.killed = self.kills.get(attempt.process)
        self._leave_out_those_without_a_try()
        self.limits = defaultdict(list)
        for attempt in sorted(self.attempts.values(), key=lambda attempt: attempt.first.time):
            # The attempt whose hold it replaces: an upgrade or a downgrade.
            attempt.beside = self.attempts.get((attempt.process, attempt.first.values.get("beside")))
            if attempt.mode.shape == "permits":
                asked = self.limits[attempt.key]
                asked.append((attempt.first.time, max(asked[-1][1] if asked else 0, attempt.mode.limit)))
        for event in self.judged:
            attempt = self.attempts.get((event.values["by"], event.values["attempt"]))
            if attempt:
                attempt.judged.append(event)
        self.holds = defaultdict(list)
        for attempt in self.attempts.values():
            if attempt.granted:
                self.holds[attempt.key].append(attempt)
        for holds in self.holds.values():
            holds.sort(key=lambda hold: (hold.granted.time, hold.token))
        self.ttl = max((hold.granted.values["ttl"] for holds in self.holds.values() for hold in holds), default=0)

    def all_holds(self):
        for holds in self.holds.values():
            yield from holds

    def limit(self, hold):
        """The largest limit that anybody had asked with on its key when it was granted."""
        asked = self.limits[hold.key]
        return asked[bisect_right(asked, (hold.granted.time, LARGEST)) - 1][1] if asked else 1

    def paused(self, process, begin, end):
        """How long this process did not run in this stretch, as far as the history tells."""
        return self.pauses[process].within(begin, end)

    def all_paused(self, begin, end):
        """The times for which the processes did not run, together."""
        return sum(spans.within(begin, end) for spans in self.pauses.values())

    def stood(self, begin, end):
        """The times for which the processes did not run, or the servers had no processor, together."""
        return self.all_paused(begin, end) + self.starved.within(begin, end)

    def disturbed(self, after, but=()):
        """The stretches of time in which something was broken, and so long after each."""
        spans = [(begin, end + after) for fault, begin, end in self.faults if fault not in but]
        if "stop" not in but:
            spans += [(begin, end + after) for _, begin, end in self.stops]
        if "kill" not in but:
            spans += [(time, time + after) for time in self.kills.values()]
        return Spans(spans)

    def _of_attempt(self, event):
        values = event.values
        key = (event.process, values["attempt"])
        attempt = self.attempts.get(key)
        if attempt is None:
            attempt = self.attempts[key] = Attempt(*key)
            if event.name != "try":
                self.odd.append((event, f"{event.name} before the try of {attempt}"))
        attempt.lines.append(event)
        _STEP[event.name](self, attempt, event)

    def _leave_out_those_without_a_try(self):
        """The rule attempts names them; the others could not judge them."""
        self.attempts = {key: attempt for key, attempt in self.attempts.items() if attempt.first}

    def _once(self, attempt, event, field):
        if getattr(attempt, field):
            self.odd.append((event, f"{attempt} has {event.name} twice"))
        else:
            setattr(attempt, field, event)

    def _try(self, attempt, event):
        self._once(attempt, event, "first")
        try:
            attempt.mode = attempt.mode or Mode(event.values["mode"])
        except ValueError as error:
            raise Unreadable(f"{event.place()}: {error}") from None

    def _granted(self, attempt, event):
        self._once(attempt, event, "granted")
        attempt.validities.append((event.time, event.values["valid_until"]))

    def _validity(self, attempt, event):
        attempt.validities.append((event.time, event.values["valid_until"]))

    def _stop(self, whom, begin, end):
        self.pauses[whom].add(begin, end)
        self.stops.append((whom, begin, end))

    def _continued(self, event):
        begin = self._open_stops.pop(event.values["whom"], None)
        if begin is None:
            self.odd.append((event, f"{event.values['whom']} was continued and had not been stopped"))
        else:
            self._stop(event.values["whom"], begin, event.time)

    def _healed(self, event):
        begin = self._open_faults.pop(event.values["fault"], None)
        if begin is None:
            self.odd.append((event, f"{event.values['fault']} was mended and had not begun"))
        else:
            self.faults.append((event.values["fault"], begin, event.time))


_TAKE = {
    "started": lambda story, e: story.starts.setdefault(e.process, e),
    "ended": lambda story, e: story.ends.setdefault(e.process, e),
    "stalled": lambda story, e: story.pauses[e.process].add(e.time - e.values["length"], e.time),
    "waiting": lambda story, e: story.waiting.append(e),
    "alarm": lambda story, e: story.alarms.append(e),
    "judged": lambda story, e: story.judged.append(e),
    "killed": lambda story, e: story.kills.setdefault(e.values["whom"], e.time),
    "stopped": lambda story, e: story._open_stops.setdefault(e.values["whom"], e.time),
    "continued": Story._continued,
    "struck": lambda story, e: story._open_faults.setdefault(e.values["fault"], e.time),
    "healed": Story._healed,
    "evicted": lambda story, e: story.evictions.append(e),
    "kept": lambda story, e: story.kept.append(e),
    "inspected": lambda story, e: story.inspected.append(e),
    "ghost": lambda story, e: story.ghosts.append(e),
    "starved": lambda story, e: story.starved.add(e.time - e.values["length"], e.time),
}
_STEP = {
    "try": Story._try,
    "granted": Story._granted,
    "renewed": Story._validity,
    "held": Story._validity,
    "suspect": lambda story, attempt, event: None,
    "blocked": lambda story, attempt, event: story._once(attempt, event, "blocked"),
    "gave_up": lambda story, attempt, event: story._once(attempt, event, "gave_up"),
    "lost": lambda story, attempt, event: story._once(attempt, event, "lost"),
    "releasing": lambda story, attempt, event: story._once(attempt, event, "releasing"),
    "released": lambda story, attempt, event: story._once(attempt, event, "released"),
    "wrote": lambda story, attempt, event: attempt.writes.append(event),
}
