"""Lies about what the resource has accepted."""

from .history import any_of


def old_token_accepted(history, number):
    """A late write of an older holder goes through."""
    one, two = any_of((pair for pair in history.pairs() if pair[0].judged and pair[1].judged), number)
    last = max(history.story.judged, key=lambda event: event.values["order"])
    values = dict(one.judged[0].values, order=last.values["order"] + 1, accepted=True)
    history.add(last, "judged", last.time + 1, **values)


def good_token_refused(history, number):
    hold = any_of((hold for hold in history.released("exclusive") if hold.judged and hold.judged[0].values["accepted"]), number)
    hold.judged[0].values["accepted"] = False
    for event in hold.writes[:1]:
        event.values["accepted"] = False


def writes_in_another_order(history, number):
    """The resource says that it has judged the later holder first."""
    one, two = any_of((pair for pair in history.pairs() if pair[0].judged and pair[1].judged), number)
    first, second = one.judged[-1].values, two.judged[0].values
    first["order"], second["order"] = second["order"], first["order"]


def one_order_twice(history, number):
    one, two = any_of(zip(history.story.judged, history.story.judged[1:]), number)
    two.values["order"] = one.values["order"]


def answer_of_a_write_turned(history, number):
    hold = any_of((hold for hold in history.released() if hold.writes), number)
    hold.writes[0].values["accepted"] = not hold.writes[0].values["accepted"]


def write_of_a_stranger(history, number):
    hold = any_of((hold for hold in history.released() if hold.judged), number)
    hold.judged[0].values["attempt"] = 10**9


def write_with_another_token(history, number):
    hold = any_of((hold for hold in history.released() if hold.judged and hold.writes), number)
    for event in hold.judged[:1] + hold.writes[:1]:
        event.values["token"] += 1


def answer_without_a_write(history, number):
    hold = any_of((hold for hold in history.released() if len(hold.judged) == 1 and hold.writes), number)
    history.remove(*hold.judged)


LIES = {
    old_token_accepted: "fence",
    good_token_refused: "fence",
    writes_in_another_order: "fence",
    one_order_twice: "fence",
    answer_of_a_write_turned: "writes",
    write_of_a_stranger: "writes",
    write_with_another_token: "writes",
    answer_without_a_write: "writes",
}
