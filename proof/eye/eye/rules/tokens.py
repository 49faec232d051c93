"""`token-unique`, `token-order` and `forgotten-claim`: contract.md, B8, and docs/history.md, "Tokens"."""

from collections import defaultdict

from ..evictions import Evictions
from ..story import drift


def unique(book, story, bounds):
    for holds in story.holds.values():
        first, owners = {}, {}
        for hold in holds:
            if not hold.token:
                # Only a client of another kind may have none.
                if hold.process.startswith("w"):
                    book.find(hold.granted, f"{hold} has no token", hold)
                continue
            book.look()
            if hold.token // 1024 >= 2**53:
                book.find(hold.granted, f"the number of {hold} is not below 2^53", hold)
            owner = owners.setdefault(hold.grant, hold)
            if owner.process != hold.process and owner.token != hold.token:
                book.find(hold.granted, f"{hold} has a token within the hold of {owner}", hold, owner)
            other = first.setdefault(hold.token, hold)
            if other is not hold and not _same_moment(hold, other):
                book.find(hold.granted, f"{hold} has the token of {other}", hold, other)


def numbered(holds):
    """Without the holds of clients of other kinds that have no number (history.md, "Tokens")."""
    return [hold for hold in holds if hold.token]


def _same_moment(one, other):
    """Two readers whose acquires overlap may be admitted by a majority of stores at the same moment."""
    return (one.mode.word == other.mode.word == "read"
            and one.first.time < other.granted.time and other.first.time < one.granted.time)


def order(book, story, bounds):
    evictions = Evictions(story)
    for holds in map(numbered, story.holds.values()):
        _excluding(book, story, holds, evictions, older=False)
        _ended_before(book, story, holds)


def forgotten(book, story, bounds):
    """While a claim is held nobody else has held its key, so what is handed over within it has the largest token yet."""
    evictions = Evictions(story)
    for holds in map(numbered, story.holds.values()):
        _excluding(book, story, holds, evictions, older=True)


def _excluding(book, story, holds, evictions, older):
    """Of holds that exclude each other, the later grant has the larger token. `older`: judges holds of claims that the store may
    have granted before the end of the one with the larger token; else, the others."""
    largest, granted = {}, _earliest(holds)
    for hold in holds:
        if hold.granted.time > hold.granted.values["valid_until"] or evictions.find(hold):
            continue  # over before its line was written: the order of the lines is not that of the grants
        limit = story.limit(hold)
        for mode, other in largest.values():
            if not (mode.excludes(hold.mode, limit) and other.granted.time < hold.granted.time):
                continue
            if (granted[hold.grant] < other.belief_end()) is older:
                book.look()
                # Equal tokens are for token-unique to find.
                if other.token > hold.token:
                    book.find(hold.granted, f"{hold} was granted after {other} and has the smaller token", hold, other)
        seen = largest.get(hold.mode.word)
        if seen is None or seen[1].token < hold.token:
            largest[hold.mode.word] = (hold.mode, hold)


def _earliest(holds):
    """The earliest moment at which the store can have granted each number. A waiter may ask again much later."""
    found = {}
    for hold in holds:
        values = hold.granted.values
        since = min(values["valid_until"] - values["ttl"] + drift(values["ttl"]), hold.first.time)
        found[hold.grant] = min(found.get(hold.grant, since), since)
    return found


def _ended_before(book, story, holds):
    """B8: if one grant on a key ended before another began, the later token is greater."""
    begun = sorted(holds, key=lambda hold: hold.first.time)
    ended = sorted((hold for hold in holds if hold.releasing), key=lambda hold: hold.releasing.time)
    # By the mode: one with a larger token that excludes this hold, which is for `_excluding`, must not hide another.
    largest, index = {}, 0
    for hold in begun:
        while index < len(ended) and ended[index].releasing.time < hold.first.time:
            word = ended[index].mode.word
            largest[word] = max(largest.get(word, ended[index]), ended[index], key=lambda it: it.token)
            index += 1
        book.look(bool(largest))
        for other in largest.values():
            if other.token > hold.token and not other.mode.excludes(hold.mode, story.limit(hold)):
                book.find(hold.granted, f"{hold} began after {other} ended and has the smaller token", hold, other)


def by_grant(story):
    """The holds of each (key, number of the store), in order of their handovers."""
    found = defaultdict(list)
    for hold in numbered(story.all_holds()):
        found[(hold.key, hold.grant)].append(hold)
    for holds in found.values():
        holds.sort(key=lambda hold: hold.token)
    return found
