"""`ghost` and `calm`: contract.md, B15; docs/history.md, "Events of the run" and `alarm`."""


def ghost(book, story, bounds):
    for event in story.inspected:
        book.look()
        last = max((attempt.lines[-1].time for attempt in story.attempts.values()), default=story.first_time)
        if event.time < last + bounds.ttl:
            book.find(event, "the store was searched before a ttl had passed since the last line of an attempt")
        if event.values["entries"] and not story.ghosts:
            book.find(event, f"{event.values['entries']} entries were found, and none is named")
    for event in story.ghosts:
        book.find(event, f"{event.values['name']} ({event.values['what']}) is left over")


def calm(book, story, bounds):
    """An alarm has a cause: a fault, a stop, a kill or an eviction, within a ttl and a renewal's timeout before it."""
    after = bounds.ttl + bounds.learns
    causes = story.disturbed(after, but=("evict",))
    for event in story.evictions:
        causes.add(event.values["asked"], event.time + after)
    book.look(len(story.alarms) + sum(not causes.touch(hold.granted.time, hold.granted.time) for hold in story.all_holds()))
    for event, text, *about in _alarms(story):
        time = event.time
        caused = (causes.touch(time, time)
                  or story.paused(event.process, time - after, time) > bounds.op_timeout
                  or story.starved.within(time - bounds.op_timeout, time) * 3 >= bounds.op_timeout)
        if not caused:
            book.find(event, f"{text}, without a cause", *about)


def _alarms(story):
    """What was lost, in doubt, refused or unknown. The workers provoke `max_hold`."""
    for event in story.alarms:
        if event.values["kind"] != "max_hold":
            yield event, f"{event.process} was notified of {event.values['kind']} on {event.values['key']}"
    for attempt in story.attempts.values():
        if attempt.gave_up and attempt.gave_up.values["why"] == "failed":
            yield attempt.gave_up, f"{attempt} failed", attempt
        if attempt.lost and attempt.lost.values["reason"] != "max_hold":
            yield attempt.lost, f"{attempt} was lost", attempt
        if attempt.released and attempt.released.values["answer"] != "yes" and not attempt.lost:
            yield attempt.released, f"the release of {attempt} was answered {attempt.released.values['answer']}", attempt
