"""Lies about tokens."""

from .history import any_of


def tokens_swapped(history, number):
    """Two holds have each other's token, in every line about them."""
    one, two = any_of((pair for pair in history.pairs() if not pair[0].is_handover and not pair[1].is_handover), number)
    first, second = one.token, two.token
    _give(one, second)
    _give(two, first)


def tokens_swapped_when_granted(history, number):
    one, two = any_of(history.pairs(), number)
    one.granted.values["token"], two.granted.values["token"] = two.token, one.token


def token_used_twice(history, number):
    one, two = any_of(history.pairs(), number)
    _give(two, one.token)


def reader_token_shrinks(history, number):
    """A later reader has a smaller token than one that ended before."""
    holds = history.released("read")
    pairs = ((a, b) for i, a in enumerate(holds) for b in holds[i + 1 :]
             if a.key == b.key and a.releasing.time < b.first.time)
    one, two = any_of(pairs, number)
    _give(two, one.token - 1024)


def _give(hold, token):
    hold.granted.values["token"] = token
    for event in hold.writes + hold.judged:
        event.values["token"] = token


LIES = {
    tokens_swapped: "token-order",
    tokens_swapped_when_granted: "writes",
    token_used_twice: "token-unique",
    reader_token_shrinks: "token-order",
}
