"""`kept`: the store keeps a hold for as long as its holder may rely on it (contract.md, B4)."""

from ..story import MS
from .tokens import by_grant


def kept(book, story, bounds):
    grants = by_grant(story)
    for event in story.kept:
        asked, remaining = event.values["asked"], event.values["remaining"]
        book.look()
        holds = grants.get((event.values["key"], event.values["grant"]), ())
        # What ends a hold by force holds the key for a moment, with a ttl of its own.
        if holds and remaining > bounds.ends + MS:
            book.find(event, f"the store keeps a hold on {event.values['key']} for longer than its ttl: {remaining} ns", *holds[:1])
        for hold in holds:
            if not hold.granted.time <= asked or hold.belief_end() < event.time:
                continue
            short = hold.validity_at(asked) - (event.time + remaining)
            if short > 0:
                book.find(event, f"{hold} relies on its hold {short / 1e6:.3f} ms longer than the store keeps it", hold)
