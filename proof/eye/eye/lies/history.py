"""A history that can be changed and written again."""

import os

from ..reading import Event, read_folder
from ..story import MS, Story

SECOND = 1000 * MS


class NoMaterial(Exception):
    """The history has nothing that this lie could be told about."""


class Choice(int):
    """The number that chooses a place, and the stretches of time in which no place may lie."""

    def __new__(cls, number, excused=(), settle=0):
        self = super().__new__(cls, number)
        self.excused, self.settle, self.spans = excused, settle, ()
        return self

    def at(self, story):
        """The same for one history."""
        self.spans = [span for allowed in self.excused for span in allowed.spans(story)]
        return self


class History:
    def __init__(self, events):
        self.events = events
        self.story = Story(events)
        self.ttl = self.story.ttl

    @classmethod
    def read(cls, folder):
        return cls(read_folder(folder))

    @classmethod
    def copy(cls, events):
        """A history of its own: its changes do not reach these events."""
        return cls([Event(e.time, e.process, e.task, e.name, dict(e.values), e.file, e.number, e.text) for e in events])

    def in_order(self):
        return sorted(self.events, key=lambda event: event.time)

    def holds(self, *, several=False, wanted=lambda hold: True):
        """Holds in order of their grants; those of several keys only if wanted."""
        found = [hold for hold in self.story.all_holds()
                 if (several or not hold.first.values["several"]) and wanted(hold)]
        return sorted(found, key=lambda hold: hold.granted.time)

    def released(self, mode=None):
        """Holds that were released, with an answer of yes."""
        return self.holds(wanted=lambda hold: hold.released and hold.released.values["answer"] == "yes"
                          and not hold.lost and (mode is None or hold.mode.word.startswith(mode)))

    @property
    def evicted(self):
        """The evictions by the key and the number of the hold."""
        return {(event.values["key"], event.values["grant"]): event for event in self.story.evictions}

    def pairs(self, mode="exclusive"):
        """Released holds and their successors on the same key, in different processes."""
        evicted = self.evicted
        for key, holds in self.story.holds.items():
            for one, two in zip(holds, holds[1:]):
                if (one.released and two.released and one.mode.word == two.mode.word == mode
                        and not one.first.values["several"] and one.process != two.process
                        and one.releasing.time < two.granted.time
                        and not {(key, one.grant), (key, two.grant)} & evicted.keys()):
                    yield one, two

    def lost(self, *reasons):
        return self.holds(several=True, wanted=lambda hold: hold.lost and hold.lost.values["reason"] in reasons)

    def remove(self, *events):
        gone = {id(event) for event in events}
        self.events = [event for event in self.events if id(event) not in gone]

    def add(self, like, name, time, **values):
        """A line of the same process and file as another one."""
        added = Event(time, like.process, like.task, name, values, like.file, 0, "")
        self.events.append(added)
        return added

    def stand_still(self, since, length):
        """Nothing happens for so long; then all goes on as it did."""
        for event in self.events:
            if event.time >= since:
                event.time += length
                for name in ("valid_until", "since", "asked"):
                    if event.values.get(name, 0) >= since:
                        event.values[name] += length

    def write(self, folder):
        os.makedirs(folder, exist_ok=True)
        files = {}
        for event in self.in_order():
            files.setdefault(event.file, []).append(render(event))
        for name, lines in files.items():
            with open(os.path.join(folder, name), "w", encoding="utf-8", errors="surrogateescape") as file:
                file.write("\n".join(lines) + "\n")


def any_of(found, number):
    """One of what was found: the number chooses. Nothing that touches a stretch of time which the number avoids."""
    spans = getattr(number, "spans", ())
    found = [place for place in found if not (spans and _touches(place, spans))]
    if not found:
        raise NoMaterial
    return found[number % len(found)]


def is_calm(history, begin, end, number):
    """Whether nothing was broken in this stretch of time, nor before it and after it for as long as the number says."""
    story, margin = history.story, 2 * history.ttl
    margin = max(margin, getattr(number, "settle", 0))
    spans = [(first, until) for name, first, until in story.stops + story.faults if name != "evict"]
    spans += [(time, time) for time in story.kills.values()]
    stalled = any(p.within(begin, end) > 200 * MS for p in story.pauses.values())
    return not stalled and not any(first < end + margin and until + margin > begin for first, until in spans)


def is_quiet(history, begin, end, number):
    """Whether nothing was broken or ended by force in this stretch of time, nor shortly before it, and the workers had the processors that they need."""
    story, margin = history.story, max(3 * history.ttl, getattr(number, "settle", 0))
    broken = story.disturbed(margin)
    for event in story.evictions:
        broken.add(event.values["asked"], event.time + margin)
    stalled = max(story.all_paused(begin, end), story.starved.within(begin - margin, end))
    return not broken.touch(begin, end) and stalled < 100 * MS


def _touches(place, spans):
    times = list(_times(place))
    first, last = min(times), max(times)
    return any(begin <= last and first <= end for begin, end in spans)


def _times(place):
    if isinstance(place, tuple):
        for part in place:
            yield from _times(part)
    elif isinstance(place, Event):
        yield place.time
        yield from (value for name, value in place.values.items() if name in ("since", "asked"))
    else:
        yield place.valid_until if place.granted else place.lines[-1].time
        for event in place.lines + place.judged:
            yield from _times(event)


def word(value):
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    return "".join(chr(byte) if 33 <= byte < 127 and byte not in b"%=" else f"%{byte:02X}"
                   for byte in value.encode("utf-8", "surrogateescape"))


def render(event):
    words = [str(event.time), word(event.process), event.task, event.name]
    return " ".join(words + [f"{name}={word(value)}" for name, value in event.values.items()])
