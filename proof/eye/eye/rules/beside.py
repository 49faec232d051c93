"""`beside`: upgrades and downgrades (contract.md, B16; docs/history.md, `try` and `gave_up`)."""

CHANGES = {("read", "write"), ("write", "read")}


def beside(book, story, bounds):
    changes = [attempt for attempt in story.attempts.values() if "beside" in attempt.first.values]
    for attempt in story.attempts.values():
        if "beside" in attempt.first.values:
            book.look()
            _replaces(book, attempt)
        if attempt.gave_up and attempt.gave_up.values["why"] == "conflict":
            was_passed = _has_passed(story, attempt)
            if not any(_in_the_way(other, attempt, bounds) for other in changes if was_passed or other.mode.word == "write"):
                book.find(attempt.gave_up, f"{attempt} met another change, and there was none", attempt)


def _replaces(book, attempt):
    """It is tried beside a hold of its task, and ends it when it is granted."""
    before = attempt.beside
    if before is None or not before.granted:
        book.find(attempt.first, f"{attempt} replaces a hold that there is not", attempt)
        return
    if ((before.key, before.first.task) != (attempt.key, attempt.first.task)
            or (before.mode.word, attempt.mode.word) not in CHANGES):
        book.find(attempt.first, f"{attempt} replaces {before}, which is another lock", attempt, before)
    over = before.over()
    if attempt.first.time < before.granted.time or over is not None and over < attempt.first.time:
        book.find(attempt.first, f"{attempt} replaces {before}, which was not held", attempt, before)
    if attempt.granted:
        after = [event for event in before.lines if event.time > attempt.granted.time]
        # Over HTTP, a write hold is given up before the downgrade is sent.
        is_given_up = attempt.mode.word == "read" and before.releasing and before.releasing.time == over
        if over is not None and over < attempt.granted.time and not is_given_up:
            book.find(attempt.granted, f"{attempt} was granted beside {before}, which was over", attempt, before)
        elif after and after[0].name != "releasing":
            book.find(after[0], f"{before} went on when it had been replaced by {attempt}", attempt, before)


def _has_passed(story, attempt):
    """Whether a writer waits that came before the hold of this upgrade: a change had removed its place."""
    return any(
        other.key == attempt.key and other.mode.word == "write" and "beside" not in other.first.values
        and other.first.time < attempt.beside.granted.time and other.waited_until(story.last_time) > attempt.first.time
        for other in story.attempts.values() if attempt.beside and attempt.beside.granted
    )


def _in_the_way(other, attempt, bounds):
    """Whether this change, or what it left at the store, may have been met by that upgrade: also an earlier one of its own
    task, whose withdrawal no server has confirmed yet, and one that had removed the place of an earlier waiter."""
    if other is attempt or other.key != attempt.key or other.first.time > attempt.first.time and _of_one_task(other, attempt):
        return False
    end = other.granted.time if other.granted else other.over()
    return other.first.time < attempt.gave_up.time and (end is None or end + bounds.ends + bounds.slack > attempt.first.time)


def _of_one_task(one, other):
    return (one.process, one.first.task) == (other.process, other.first.task)
