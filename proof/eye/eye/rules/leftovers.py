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
    for event in story.alarms:
        book.look()
        kind = event.values["kind"]
        if kind == "max_hold":
            continue  # the worker has set it so
        time = event.time
        caused = (any(begin <= time <= end + after for _, begin, end in story.faults)
                  or any(begin <= time <= end + after for _, begin, end in story.stops)
                  or any(kill <= time <= kill + after for kill in story.kills.values())
                  or any(e.values["asked"] <= time <= e.time + after for e in story.evictions)
                  or story.paused(event.process, time - after, time) > bounds.op_timeout
                  or story.starved.within(time - bounds.op_timeout, time) * 3 >= bounds.op_timeout)
        if not caused:
            book.find(event, f"{event.process} was notified of {kind} on {event.values['key']}, without a cause")
