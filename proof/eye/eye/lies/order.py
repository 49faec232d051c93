"""Lies about whose turn it was."""

from .history import SECOND, any_of, is_calm


def fair_waiter_overtaken(history, number):
    """Two fair waiters have changed places: the later one is granted the hold of the earlier one."""
    holds = history.holds(wanted=lambda hold: hold.first.values["fair"] and not hold.is_handover)
    pairs = ((a, b) for i, a in enumerate(holds) for b in holds[i + 1 : i + 20]
             if a.key == b.key and a.blocked and a.process != b.process
             and a.blocked.time < b.first.time and b.first.time < a.granted.time and b.blocked is not None
             and b.blocked.time < a.granted.time and is_calm(history, a.blocked.time, b.granted.time, number))
    one, two = any_of(pairs, number)
    _exchange(one, two)


def _exchange(one, two):
    """From their grants on, each lives the other one's life."""
    lives = [[e for e in hold.lines if e.name not in ("try", "blocked")] for hold in (one, two)]
    for events, judged, new in ((lives[0], one.judged, two), (lives[1], two.judged, one)):
        for event in events:
            event.process, event.task, event.file = new.process, new.first.task, new.first.file
            event.values["attempt"] = new.number
        for event in judged:
            event.values["by"], event.values["attempt"] = new.process, new.number


def key_left_free(history, number):
    """Nothing happens for a minute, although an attempt waits for a key that nobody holds."""
    story = history.story
    one, two = any_of(((a, b) for a, b in history.pairs() if b.first.time < a.releasing.time
                       and a.released.time < b.granted.time and b.first.values["waits"]
                       and not any(first <= b.granted.time <= until for _, first, until in story.stops + story.faults)), number)
    history.stand_still(two.granted.time, 60 * SECOND)


LIES = {
    fair_waiter_overtaken: "fair",
    key_left_free: "handed-on",
}
