"""Lies about releases, leftovers and alarms."""

from .history import MS, NoMaterial, any_of, is_quiet


def release_denied(history, number):
    """A healthy hold is answered that it was not held."""
    hold = any_of((h for h in history.released("exclusive")
                   if (h.key, h.grant) not in {(e.values["key"], e.values["grant"]) for e in history.story.evictions}), number)
    hold.released.values["answer"] = "not_held"


def release_confirmed_too_late(history, number):
    """The release of a hold that has expired is answered yes."""
    hold = any_of((hold for hold in history.lost("expired", "max_hold") if not _in_doubt(hold)), number)
    index = hold.lines.index(hold.lost)
    history.remove(*hold.lines[index:])
    history.add(hold.lost, "releasing", hold.valid_until + MS, attempt=hold.number, how="release")
    history.add(hold.lost, "released", hold.valid_until + 2 * MS, attempt=hold.number, answer="yes")


def release_of_an_evicted_hold_confirmed(history, number):
    grants = {(e.values["key"], e.values["grant"]): e for e in history.story.evictions}
    holds = (h for h in history.holds(several=True) if h.lost and h.lost.values["reason"] == "taken" and (h.key, h.grant) in grants)
    hold = any_of(holds, number)
    end = grants[(hold.key, hold.grant)].time
    history.remove(*hold.lines[hold.lines.index(hold.lost) :])
    history.add(hold.lost, "releasing", max(end, hold.lines[0].time) + 1, attempt=hold.number, how="release")
    history.add(hold.lost, "released", max(end, hold.lines[0].time) + 2, attempt=hold.number, answer="yes")
    history.remove(*[e for e in hold.lines if e.name in ("held", "renewed", "wrote") and e.time > end])


def _in_doubt(hold):
    """Whether the store may still have it, as far as its holder was told."""
    return [event.name for event in hold.lines if event.name in ("held", "suspect")][-1:] == ["suspect"]


def ghost(history, number):
    if not history.story.inspected:
        raise NoMaterial
    event = history.story.inspected[-1]
    history.add(event, "ghost", event.time, what="a holder").values["name"] = "hot0"


def false_alarm(history, number):
    """The observer of a calm process is notified of an end."""
    starved = history.story.starved
    started = any_of((e for e in history.events if e.name == "started" and not starved.touch(e.time - 3 * history.ttl, e.time + 100 * MS)), 0)
    history.add(started, "alarm", started.time + 100 * MS, key="hot0", kind="expired")


def failed_without_a_fault(history, number):
    story = history.story
    # A process that did not run for a while may fail for that.
    attempt = any_of((a for a in story.attempts.values()
                      if a.gave_up and is_quiet(history, a.gave_up.time, a.gave_up.time, number)
                      and story.paused(a.process, a.gave_up.time - 3 * history.ttl, a.gave_up.time) < 100 * MS), number)
    attempt.gave_up.values["why"] = "failed"


LIES = {
    release_denied: "release",
    release_confirmed_too_late: "release",
    release_of_an_evicted_hold_confirmed: "release",
    ghost: "ghost",
    false_alarm: "calm",
    failed_without_a_fault: "calm",
}
