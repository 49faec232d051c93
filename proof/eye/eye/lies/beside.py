"""Lies about upgrades and downgrades."""

from .history import MS, SECOND, any_of


def reader_beside_an_upgraded_writer(history, number):
    """A reader that left while an upgrade waited goes on during the write hold."""
    reader, upgrade = any_of(_readers_that_left(history), number)
    later = (upgrade.granted.time + upgrade.releasing.time) // 2 - reader.releasing.time
    for event in (reader.releasing, reader.released):
        if event:
            event.time += later


def upgraded_beside_a_reader(history, number):
    """An upgrade is granted before the other reader has left."""
    reader, upgrade = any_of(_readers_that_left(history), number)
    upgrade.granted.time = max(upgrade.first.time, reader.granted.time) // 2 + reader.releasing.time // 2


def two_upgrades_at_once(history, number):
    """An upgrade that met another one is granted, too."""
    refused, _ = any_of(_refused(history), number)
    before, time = refused.beside, refused.gave_up.time
    went_on = before.lines[[event.time > time for event in before.lines].index(True) :]
    history.add(refused.first, "granted", time, **dict(before.granted.values, attempt=refused.number, valid_until=before.validity_at(time)))
    history.remove(refused.gave_up)
    history.add(refused.first, "releasing", time, attempt=before.number, how="drop")
    for event in went_on:
        event.values["attempt"] = refused.number


def refused_for_no_other_upgrade(history, number):
    attempt = any_of((a for a in history.story.attempts.values() if a.beside and a.mode.word == "write"
                      and a.gave_up and a.gave_up.values["why"] != "conflict"), number)
    attempt.gave_up.values["why"] = "conflict"
    for other in history.story.attempts.values():
        if other.beside and other.mode.word == "write" and other is not attempt and other.key == attempt.key:
            other.first.values["mode"] = "read"


def upgraded_without_a_read_hold(history, number):
    """An upgrade replaces a hold that was given up before it was tried."""
    attempt = any_of(_changed(history), number)
    attempt.beside.releasing.time = attempt.first.time - 1


def read_hold_goes_on(history, number):
    """The hold that was replaced goes on for a moment."""
    attempt = any_of(_changed(history), number)
    time = attempt.granted.time
    history.add(attempt.first, "held", time + 1, attempt=attempt.beside.number, valid_until=attempt.beside.valid_until)
    attempt.beside.releasing.time = time + MS


def upgrade_left_waiting(history, number):
    """Nothing happens for a minute, although an upgrade waits for readers that have left."""
    story = history.story
    _, upgrade = any_of((pair for pair in _readers_that_left(history) if not any(
        first <= pair[1].granted.time <= until for _, first, until in story.stops + story.faults)), number)
    history.stand_still(upgrade.granted.time, 60 * SECOND)


def _changed(history):
    """Upgrades and downgrades that were granted."""
    return (hold for hold in history.holds() if hold.beside and hold.beside.releasing
            and hold.first.time > hold.beside.granted.time + MS)


def _readers_that_left(history):
    """Readers that were released while an upgrade waited, and this upgrade."""
    for upgrade in _changed(history):
        if upgrade.mode.word != "write" or not upgrade.releasing or upgrade.releasing.time < upgrade.granted.time + MS:
            continue
        for reader in history.story.holds[upgrade.key]:
            if (reader.process != upgrade.process and reader.mode.word == "read" and reader.releasing
                    and upgrade.first.time + MS < reader.releasing.time < upgrade.granted.time
                    and reader.granted.time < reader.releasing.time - MS and upgrade.granted.time + MS < reader.valid_until
                    and (reader.killed is None or reader.killed > upgrade.releasing.time)):
                yield reader, upgrade


def _refused(history):
    """Upgrades that were refused for another one, and that one, which was granted before the reader could leave."""
    for attempt in history.story.attempts.values():
        if attempt.beside and attempt.gave_up and attempt.gave_up.values["why"] == "conflict" and attempt.beside.belief_end() > attempt.gave_up.time + MS:
            for other in history.story.holds[attempt.key]:
                time = attempt.gave_up.time
                if other.beside and other.process != attempt.process and other.first.time < time < other.granted.time:
                    yield attempt, other


LIES = {
    reader_beside_an_upgraded_writer: "exclusion",
    upgraded_beside_a_reader: "exclusion",
    two_upgrades_at_once: "exclusion",
    refused_for_no_other_upgrade: "beside",
    upgraded_without_a_read_hold: "beside",
    read_hold_goes_on: "beside",
    upgrade_left_waiting: "handed-on",
}
