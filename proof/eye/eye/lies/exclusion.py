"""Lies that make two holders."""

from .history import MS, any_of


def granted_too_early(history, number):
    """The successor is granted before its predecessor gives up."""
    one, two = any_of((pair for pair in history.pairs() if pair[1].first.time < pair[0].granted.time
                       and pair[0].releasing.time - pair[0].granted.time > MS), number)
    two.granted.time = (one.granted.time + one.releasing.time) // 2


def released_too_late(history, number):
    one, two = any_of((pair for pair in _while_valid(history) if pair[1].releasing.time - pair[1].granted.time > MS), number)
    later = (two.granted.time + two.releasing.time) // 2 - one.releasing.time
    one.releasing.time += later
    one.released.time += later


def release_not_told(history, number):
    one, _ = any_of(_while_valid(history), number)
    history.remove(one.releasing, one.released)


def _while_valid(history):
    """The successor came while its predecessor could still have relied on its hold."""
    return (pair for pair in history.pairs() if pair[1].granted.time + MS < min(pair[0].valid_until, pair[1].valid_until)
            and (pair[0].killed is None or pair[0].killed > pair[1].granted.time + MS))


def reader_was_writer(history, number):
    one, _ = any_of(_overlapping(history, "read"), number)
    one.first.values["mode"] = "write"


def permit_took_all(history, number):
    one, _ = any_of(_overlapping(history, "permits"), number)
    limit = history.story.limits[one.key][-1][1]
    one.first.values["mode"] = f"permits:{limit}/{limit}"


def permits_over_the_largest_limit(history, number):
    """More permits are held at once than anybody has asked for on this key."""
    one, two = any_of(_overlapping(history, "permits"), number)
    limit = max(one.mode.take + two.mode.take - 1, one.mode.take, two.mode.take)
    for attempt in history.story.attempts.values():
        if attempt.key == one.key:
            attempt.first.values["mode"] = f"permits:{min(attempt.mode.take, limit)}/{limit}"


def hold_of_another_key(history, number):
    """A hold, with all that it wrote, was on a key that somebody else held."""
    holds = history.released("exclusive")
    pairs = ((a, b) for i, a in enumerate(holds) for b in holds[i + 1 : i + 12]
             if a.key != b.key and a.process != b.process and b.granted.time + MS < a.releasing.time)
    one, two = any_of(pairs, number)
    two.first.values["key"] = one.key
    for event in two.judged:
        event.values["key"] = one.key


def _overlapping(history, mode):
    holds = history.released(mode)
    for index, one in enumerate(holds):
        for two in holds[index + 1 : index + 8]:
            if one.key == two.key and one.process != two.process and two.granted.time + MS < min(one.releasing.time, two.releasing.time):
                yield one, two


LIES = {
    granted_too_early: "exclusion",
    released_too_late: "exclusion",
    release_not_told: "exclusion",
    reader_was_writer: "exclusion",
    permit_took_all: "exclusion",
    permits_over_the_largest_limit: "exclusion",
    hold_of_another_key: "exclusion",
}
