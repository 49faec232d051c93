"""Lies about whose turn it was."""

from .history import SECOND, any_of, is_calm, is_quiet


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


def released_to_nobody(history, number):
    """The next one is admitted by the end of a ttl, not by the release."""
    pairs = ((a, b) for a, b in history.pairs() if b.first.time < a.released.time < b.granted.time and b.first.values["waits"]
             and not b.first.values["several"] and is_quiet(history, a.granted.time, b.granted.time, number))
    _, two = any_of(pairs, number)
    history.stand_still(two.granted.time, 2 * history.ttl)


def killed_and_not_replaced(history, number):
    """A key stays closed for a minute after its holder was killed."""
    _, two = any_of(_killed(history, number), number)
    history.stand_still(two.granted.time, 60 * SECOND)


def kept_out_by_another_process(history, number):
    """A process waits for a minute, while another one hands the key over to itself."""
    waiting = history.story.waiting
    pairs = ((a, b) for a, b in history.pairs() if a.released.time < b.granted.time and not b.first.values["fair"]
             and not b.first.values["several"]
             and any(e.process == b.process and e.values["key"] == b.key and b.first.time < e.time < a.released.time for e in waiting)
             and not any(h.process == b.process and b.first.time < h.granted.time < b.granted.time for h in history.story.holds[b.key])
             and not any(c.process == b.process and c.gave_up and b.first.time < c.gave_up.time < b.granted.time
                         for c in history.story.attempts.values() if c.key == b.key)
             and is_quiet(history, b.first.time, b.granted.time, number))
    _, two = any_of(pairs, number)
    history.stand_still(two.granted.time, 60 * SECOND)


def done_twice(history, number):
    """A task is begun again that was done in its period."""
    tasks = [hold for hold in history.released("exclusive") if "@" in hold.key]
    one, two = any_of(((a, b) for i, a in enumerate(tasks) for b in tasks[i + 1 :]
                       if a.key != b.key and a.released.time < b.granted.time), number)
    two.first.values["key"] = one.key
    for event in two.judged:
        event.values["key"] = one.key


def _killed(history, number):
    """Holders that were killed, and who was granted their keys then."""
    story, settle = history.story, max(2 * history.ttl, number.settle)
    broken = story.disturbed(settle, but=("kill",))
    for hold in history.holds(wanted=lambda h: h.mode.word == "exclusive"):
        if hold.killed is None or hold.releasing or hold.lost or not hold.granted.time < hold.killed < hold.valid_until:
            continue
        two = next((h for h in story.holds[hold.key] if h.granted.time > hold.killed), None)
        if (two and two.process != hold.process and two.first.values["waits"] and not two.first.values["several"]
                and not broken.touch(hold.killed, two.granted.time)):
            yield hold, two


LIES = {
    fair_waiter_overtaken: "fair",
    key_left_free: "handed-on",
    released_to_nobody: "release-counts",
    killed_and_not_replaced: "takeover",
    kept_out_by_another_process: "unfairness",
    done_twice: "done-once",
}
