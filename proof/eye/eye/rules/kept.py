"""`kept`: the store keeps a hold for as long as its holder may rely on it (contract.md, B4)."""

from ..story import MS
from .tokens import by_grant


def kept(book, story, bounds):
    grants = by_grant(story)
    for event in story.kept:
        asked, remaining = event.values["asked"], event.values["remaining"]
        book.look()
        if remaining > bounds.ends + MS:
            book.find(event, f"the store keeps a hold on {event.values['key']} for longer than its ttl: {remaining} ns")
        for hold in grants.get((event.values["key"], event.values["grant"]), ()):
            if not hold.granted.time <= asked or hold.belief_end() < event.time:
                continue
            short = hold.validity_at(asked) - (event.time + remaining)
            if short > 0:
                book.find(event, f"{hold} relies on its hold {short / 1e6:.3f} ms longer than the store keeps it", hold)
