"""Lies about losses."""

from .history import MS, SECOND, any_of, is_calm

BY_TIME = ("expired", "max_hold")


def loss_not_told(history, number):
    hold = any_of(_that_ran_on(history), number)
    index = hold.lines.index(hold.lost)
    history.remove(*hold.lines[index:])


def loss_told_late(history, number):
    hold = any_of(_that_ran_on(history), number)
    for event in hold.lines[hold.lines.index(hold.lost) :] + hold.judged[-1:]:
        event.time += SECOND
    hold.lost.values["since"] += SECOND


def lost_before_the_end(history, number):
    hold = any_of((hold for hold in history.lost(*BY_TIME) if not hold.first.values["several"]), number)
    hold.lost.values["since"] = hold.valid_until - 100 * MS


def lost_in_the_future(history, number):
    hold = any_of(history.lost(*BY_TIME, "taken"), number)
    hold.lost.values["since"] = hold.lost.time + 100 * MS


def taken_by_nobody(history, number):
    """A healthy hold is lost, and nobody has ended it."""
    hold = any_of(_calm(history), number)
    time = hold.releasing.time
    history.remove(hold.releasing, hold.released)
    history.add(hold.granted, "lost", time, attempt=hold.number, since=time, reason="taken")


def eviction_not_told(history, number):
    """The store has ended holds by itself."""
    evicted = history.evicted
    ends = ((evicted.get((hold.key, hold.grant)), hold) for hold in history.lost("taken") if not hold.first.values["several"])
    event, _ = any_of(((event, hold) for event, hold in ends if event), number)
    same = [e for e in history.story.evictions if (e.values["key"], e.values["grant"]) == (event.values["key"], event.values["grant"])]
    history.remove(*same)


def eviction_told_late(history, number):
    """A hold that was ended by force is renewed again and again."""
    length = 4 * history.ttl + 4 * SECOND
    hold, event = any_of(((hold, event) for hold in history.lost("taken") for event in [history.evicted.get((hold.key, hold.grant))]
                          if event and hold.granted.time < event.values["asked"] and (hold.killed is None or hold.killed > event.time + length)
                          and is_calm(history, event.time, event.time + length, number)), number)
    history.remove(*hold.lines[hold.lines.index(hold.lost) :])
    for time in range(event.time, event.time + length, history.ttl // 2):
        history.add(hold.first, "renewed", time + 1, attempt=hold.number, valid_until=time + history.ttl * 9 // 10)
    time = event.time + length + 2
    history.add(hold.first, "lost", time, attempt=hold.number, since=time, reason="taken")


def held_after_loss(history, number):
    hold = any_of(history.lost(*BY_TIME, "taken"), number)
    history.add(hold.lost, "held", hold.lost.time + 1, attempt=hold.number, valid_until=hold.lost.time + SECOND)


def renewed_after_loss(history, number):
    hold = any_of(history.lost(*BY_TIME, "taken"), number)
    history.add(hold.lost, "renewed", hold.lost.time + 1, attempt=hold.number, valid_until=hold.lost.time + SECOND // 2)


def released_after_loss(history, number):
    hold = any_of(history.lost(*BY_TIME), number)
    time = hold.lines[-1].time
    history.add(hold.lost, "releasing", time + 1, attempt=hold.number, how="release")
    history.add(hold.lost, "released", time + 2, attempt=hold.number, answer="yes")


def kill_not_told(history, number):
    """Holders of a killed process are never told that their validity has passed."""
    dead = {hold.process for hold in history.holds(several=True, wanted=lambda h: h.killed and h.over() == h.killed)}
    late = history.story.last_time - history.ttl - SECOND
    event = any_of((e for e in history.events if e.name == "killed" and e.values["whom"] in dead and e.time < late), number)
    history.remove(event)


def _calm(history):
    """Holds that were released and that nobody had ended by force."""
    return (hold for hold in history.released("exclusive") if (hold.key, hold.grant) not in history.evicted)


def _that_ran_on(history):
    """Holds that ended by time, whose process ran for a second and more after it was told."""
    for hold in history.lost(*BY_TIME):
        begin, end = hold.valid_until, hold.lost.time + SECOND + SECOND // 2
        lived = hold.killed is None or hold.killed > end
        if lived and end < history.story.last_time and history.story.paused(hold.process, begin, end) < SECOND // 10:
            yield hold


LIES = {
    loss_not_told: "told",
    loss_told_late: "told",
    lost_before_the_end: "loss-reason",
    lost_in_the_future: "loss-reason",
    taken_by_nobody: "loss-reason",
    eviction_not_told: "loss-reason",
    eviction_told_late: "told",
    held_after_loss: "lost-is-final",
    renewed_after_loss: "lost-is-final",
    released_after_loss: "lost-is-final",
    kill_not_told: "told",
}
