"""`exclusion`: no two holders that exclude each other believe in their hold at the same time."""

from ..evictions import Evictions


def exclusion(book, story, bounds):
    evictions = Evictions(story)
    for holds in story.holds.values():
        believers = []
        for hold in holds:
            book.look()
            begin, end = hold.granted.time, hold.belief_end()
            believers = [(other, until) for other, until in believers if until > begin]
            if end > begin:
                _meet(book, hold, believers, evictions, story, bounds)
                believers.append((hold, end))


def _meet(book, hold, believers, evictions, story, bounds):
    begin, limit, beside = hold.granted.time, story.limit(hold), []
    for other, until in believers:
        if other is hold.beside or evictions.excuse(other, begin, bounds) or evictions.excuse(hold, begin, bounds):
            continue
        # Reads and permits that do not exclude each other in pairs may still be too many together.
        if hold.mode.excludes(other.mode, limit):
            book.find(hold.granted, f"{hold} ({hold.mode.word}) believes beside {other} ({other.mode.word}) on {hold.key}, "
                      f"for {(min(until, hold.belief_end()) - begin) / 1e6:.3f} ms", hold, other)
            return
        beside.append(other)
    taken = hold.mode.take + sum(other.mode.take for other in beside)
    if hold.mode.shape == "permits" and taken > limit:
        book.find(hold.granted, f"{taken} of {limit} permits of {hold.key} are held at once", hold, *beside)
