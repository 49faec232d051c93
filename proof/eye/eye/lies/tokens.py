"""Lies about tokens."""

from ..rules.tokens import by_grant
from ..story import drift
from .history import any_of


def tokens_swapped(history, number):
    """Two holds have each other's token, in every line about them."""
    _swap(*any_of(_alone(history, later=True), number))


def claim_forgotten(history, number):
    """The store granted the first of two holds once more, and then a claim that had waited before it ended."""
    _swap(*any_of(_alone(history, later=False), number))


def token_within_another_hold(history, number):
    """A hold is handed over to another process."""
    one, two = any_of(history.pairs(), number)
    grants = by_grant(history.story)
    _give(two, grants[(one.key, one.grant)][-1].token + 1)


def _swap(one, two):
    first, second = one.token, two.token
    _give(one, second)
    _give(two, first)


def _alone(history, later):
    """Pairs of which the second was asked for when the first had ended, or before, and nothing was handed over from either."""
    grants, evicted = by_grant(history.story), history.evicted
    for key, holds in history.story.holds.items():
        holds = [h for h in holds if h.released and h.mode.word == "exclusive" and len(grants[(key, h.grant)]) == 1
                 and not h.first.values["several"] and (key, h.grant) not in evicted and h.granted.time < h.granted.values["valid_until"]]
        for one, two in zip(holds, holds[1:]):
            values = two.granted.values
            asked = min(values["valid_until"] - values["ttl"] + drift(values["ttl"]), two.first.time)
            if one.releasing.time < two.granted.time and (asked > one.releasing.time) is later:
                yield one, two


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
    claim_forgotten: "forgotten-claim",
    token_within_another_hold: "token-unique",
    tokens_swapped_when_granted: "writes",
    token_used_twice: "token-unique",
    reader_token_shrinks: "token-order",
}
