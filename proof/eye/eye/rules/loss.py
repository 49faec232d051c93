"""`lost-is-final`, `loss-reason` and `told`: time.md, "Held, suspect, lost"."""

from ..evictions import Evictions


def final(book, story, bounds):
    for hold in story.all_holds():
        if not hold.lost:
            continue
        book.look()
        for event in hold.lines[hold.lines.index(hold.lost) + 1 :]:
            if event.name in ("held", "renewed", "suspect", "lost"):
                book.find(event, f"{event.name} of {hold} after its loss", hold)
            elif event.name == "released" and event.values["answer"] == "yes":
                book.find(event, f"the release of {hold} was answered yes after its loss", hold)


def reason(book, story, bounds):
    evictions = Evictions(story)
    for hold in story.all_holds():
        lost = hold.lost
        if not lost:
            continue
        book.look()
        since, why = lost.values["since"], lost.values["reason"]
        if since > lost.time:
            book.find(lost, f"{hold} is lost in the future", hold)
        if since < hold.granted.values["valid_until"] - hold.granted.values["ttl"]:
            book.find(lost, f"{hold} was lost before it was asked for", hold)
        valid_until = min(other.validity_at(lost.time) for other in evictions.together(hold))
        if why in ("expired", "max_hold") and since < valid_until:
            book.find(lost, f"{hold} ended by time, {(valid_until - since) / 1e6:.3f} ms before its validity", hold)
        elif why == "taken":
            evicted = evictions.find_of_all(hold)
            if evicted is None or since < evicted.values["asked"]:
                book.find(lost, f"{hold} was taken, and nobody has ended it by force", hold, time=since)


def told(book, story, bounds):
    """A holder whose validity has passed learns it at once, unless it did not run."""
    for hold in story.all_holds():
        end = hold.trusted_until()
        if hold.releasing and hold.releasing.time <= end or hold.killed is not None and hold.killed <= end:
            continue
        if hold.lost and hold.lost.values["reason"] in ("taken", "session_ended") and hold.lost.time <= end:
            continue
        event = hold.lost or hold.releasing
        by = min([time for time in (event and event.time, hold.killed) if time], default=story.last_time)
        if event is None and by - end < bounds.told:
            continue
        book.look()
        late = by - end - story.paused(hold.process, end, by)
        if late > bounds.told:
            # Where servers wait for a processor, so do the threads of workers.
            late -= story.starved.within(end, by)
        if late > bounds.told:
            book.find(event or hold.lines[-1], f"{hold} was not told of its loss for {late / 1e6:.3f} ms", hold, time=end)
    evictions, broken = Evictions(story), story.disturbed(bounds.settle, but=("evict",))
    for hold in story.all_holds():
        event, end = evictions.find(hold), hold.belief_end()
        # A fault may keep the renewal from its answer.
        if event is None or hold.granted.time >= event.values["asked"] or end <= event.time or broken.touch(event.time, end):
            continue
        book.look()
        late = end - event.time - story.paused(hold.process, event.time, end)
        if late > bounds.learns:
            book.find(event, f"{hold} believed for {late / 1e6:.3f} ms in what had been ended by force", hold, time=end)
