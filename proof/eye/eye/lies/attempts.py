"""Lies that break the shape of an attempt or of a process."""

from .history import MS, any_of


def granted_twice(history, number):
    hold = any_of(history.released(), number)
    history.add(hold.granted, "granted", hold.granted.time + 1, **hold.granted.values)


def granted_without_a_try(history, number):
    hold = any_of(history.released(), number)
    history.remove(hold.first)


def granted_after_giving_up(history, number):
    attempt = any_of((a for a in history.story.attempts.values() if a.gave_up), number)
    hold = any_of((h for h in history.released("exclusive") if h.granted.time < attempt.gave_up.time), number)
    time = attempt.gave_up.time
    history.add(attempt.gave_up, "granted", time + 1, **dict(hold.granted.values, attempt=attempt.number, valid_until=time + 2))


def number_used_twice(history, number):
    one, two = any_of(((a, b) for a, b in zip(history.released(), history.released()[1:]) if a.process == b.process), number)
    for event in two.lines:
        event.values["attempt"] = one.number


def answer_to_no_release(history, number):
    hold = any_of(history.released(), number)
    history.remove(hold.releasing)


def held_after_release(history, number):
    hold = any_of(history.released(), number)
    history.add(hold.granted, "held", hold.released.time + 1, attempt=hold.number, valid_until=hold.valid_until)


def ended_with_a_hold(history, number):
    """A process ends while it holds."""
    last = any_of((max(group, key=lambda hold: hold.releasing.time) for group in _by_ended(history)), number)
    history.story.ends[last.process].time = last.releasing.time - 1
    history.remove(*[e for e in history.events if e.process == last.process and e.time >= last.releasing.time])


def _by_ended(history):
    for process in history.story.ends:
        group = [hold for hold in history.released() if hold.process == process]
        if group:
            yield group


def said_after_the_end(history, number):
    event = any_of(history.story.ends.values(), number)
    event.time -= 500 * MS


LIES = {
    granted_twice: "attempts",
    granted_without_a_try: "attempts",
    granted_after_giving_up: "attempts",
    number_used_twice: "attempts",
    answer_to_no_release: "attempts",
    held_after_release: "attempts",
    ended_with_a_hold: "attempts",
    said_after_the_end: "attempts",
}
