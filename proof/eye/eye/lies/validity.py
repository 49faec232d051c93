"""Lies about how long a holder may rely on its hold."""

from .history import SECOND, any_of, is_calm


def validity_extended(history, number):
    hold = any_of(history.released(), number)
    for event in hold.lines:
        if "valid_until" in event.values:
            event.values["valid_until"] += history.ttl


def drift_forgotten(history, number):
    """The whole ttl counts, from after the request."""
    hold = any_of(history.released(), number)
    hold.granted.values["valid_until"] = hold.granted.time + history.ttl


def renewal_extended(history, number):
    hold = any_of(history.holds(wanted=lambda hold: any(e.name == "renewed" for e in hold.lines)), number)
    last = [event for event in hold.lines if event.name == "renewed"][-1]
    last.values["valid_until"] = last.time + history.ttl


def ttl_doubled(history, number):
    """A hold is granted for longer than was asked, and relies on it."""
    hold = any_of(history.released(), number)
    hold.granted.values["ttl"] *= 2
    for event in hold.lines:
        if "valid_until" in event.values:
            event.values["valid_until"] += history.ttl


def held_when_over(history, number):
    hold = any_of(history.released(), number)
    event = any_of((e for e in hold.lines if e.name == "held"), number)
    event.values["valid_until"] = event.time - 1


def store_keeps_less(history, number):
    """The store ends the lease while its holder relies on it."""
    event, _ = any_of(_relied_on(history, number), number)
    event.values["remaining"] = 1


def store_keeps_more(history, number):
    event, _ = any_of(_kept(history), number)
    event.values["remaining"] = 10 * (history.ttl + SECOND)


def _relied_on(history, number):
    """Answers in whose time the holder had long noted how far it relies on its hold, and nothing was broken."""
    for event, hold in _kept(history):
        known = [e.values["valid_until"] for e in hold.lines
                 if e.name in ("granted", "renewed") and e.time <= event.values["asked"]]
        if known[-1] > event.time + history.ttl // 10 and is_calm(history, event.values["asked"], event.time, number):
            yield event, hold


def _kept(history):
    grants = {(hold.key, hold.grant): hold for hold in history.released()}
    for event in history.story.kept:
        hold = grants.get((event.values["key"], event.values["grant"]))
        if hold and hold.granted.time < event.values["asked"] and event.time < hold.releasing.time:
            yield event, hold


LIES = {
    validity_extended: "validity",
    drift_forgotten: "validity",
    renewal_extended: "validity",
    ttl_doubled: "validity",
    held_when_over: "held",
    store_keeps_less: "kept",
    store_keeps_more: "kept",
}
