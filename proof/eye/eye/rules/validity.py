"""`validity` and `held`: time.md, "Validity" and "Held, suspect, lost"."""

from ..story import drift


def validity(book, story, bounds):
    """valid_until = sent_at + (ttl - drift(ttl)), and sent_at was before the line."""
    for hold in story.all_holds():
        # The service adds the drift of its clients to the ttl.
        asked = max(bounds.ttl, hold.granted.values["ttl"]) if bounds.relay else bounds.ttl
        whole = asked - drift(asked)
        for index, event in enumerate(hold.lines):
            name = event.name
            if name == "granted":
                ttl = event.values["ttl"]
                book.look()
                if ttl > asked:
                    book.find(event, f"{hold} has a ttl of {ttl} ns, and {bounds.ttl} was asked for", hold)
                _not_beyond(book, hold, event, event.time + ttl - drift(ttl))
                if event.values["valid_until"] < hold.first.time:
                    book.find(event, f"{hold} was over before it was tried", hold)
            elif name == "renewed":
                book.look()
                _not_beyond(book, hold, event, event.time + whole)
            elif name == "held":
                # Read after the answer: before the next line of the attempt was written.
                following = hold.lines[index + 1].time if index + 1 < len(hold.lines) else story.last_time
                book.look()
                _not_beyond(book, hold, event, following + whole)
        _no_gap(book, story, hold, whole)


def _not_beyond(book, hold, event, limit):
    beyond = event.values["valid_until"] - limit
    if beyond > 0:
        book.find(event, f"{hold} relies on its hold for {beyond / 1e6:.3f} ms more than its ttl allows", hold)


def _no_gap(book, story, hold, whole):
    """A renewal is sent before the validity ends, so one renewal reaches at most ttl - drift beyond it. One that was under way
    while the machine was paused may be noted when its own validity is over, too. A hold that is in doubt after a pause is one
    again if the store still has it, however long that was."""
    for count, ((_, before), (seen, after)) in enumerate(zip(hold.validities, hold.validities[1:]), 1):
        if after <= max(before, seen) or seen <= before + whole:
            continue
        end = hold.trusted_until(count)
        if seen - end - story.paused(hold.process, end, seen) > whole:
            event = next(e for e in hold.lines if e.time == seen and "valid_until" in e.values)
            book.find(event, f"{hold} is valid again after its validity was over for more than a ttl", hold)


def held(book, story, bounds):
    for hold in story.all_holds():
        for event in hold.lines:
            if event.name != "held":
                continue
            book.look()
            if event.time >= event.values["valid_until"]:
                late = (event.time - event.values["valid_until"]) / 1e6
                book.find(event, f"{hold} was told that it holds, {late:.3f} ms after its validity", hold)
            # A hold of several keys may have been lost with another one, which is asked for by itself.
            several = hold.first.values["several"]
            if hold.lost and event.time > (hold.lost.time if several else hold.lost.values["since"]):
                book.find(event, f"{hold} was told that it holds, after its loss", hold)
