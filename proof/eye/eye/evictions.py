"""Holds that were ended by force: their holders learn it at their next renewal."""

from collections import defaultdict


class Evictions:
    def __init__(self, story):
        self.story = story
        self.of = {(e.values["key"], e.values["grant"]): e for e in story.evictions}
        self.several = defaultdict(list)
        for hold in story.all_holds():
            if hold.first.values["several"]:
                self.several[(hold.process, hold.first.task)].append(hold)

    def find_own(self, hold):
        """The line that says that this hold was ended."""
        # The key of a run in a period has the period's beginning behind it, and the store's has not.
        return self.of.get((hold.key.split("@")[0], hold.grant))

    def find(self, hold):
        """As find_own, or that the one was ended that it waited to replace then."""
        event = self.find_own(hold)
        if event is None and hold.beside and hold.beside.granted:
            before = self.of.get((hold.beside.key, hold.beside.grant))
            if before and before.values["asked"] <= hold.granted.time <= before.time:
                return before
        return event

    def together(self, hold):
        """This hold, and those that were acquired together with it: they are lost with each other."""
        if not hold.first.values["several"]:
            return [hold]
        # A task does one thing at a time, so acquires that overlap are one.
        return [other for other in self.several[(hold.process, hold.first.task)]
                if other.first.time <= hold.granted.time and hold.first.time <= other.granted.time]

    def find_of_all(self, hold):
        """As find. A hold of several keys is lost with any of them."""
        return next(filter(None, map(self.find, self.together(hold))), None)

    def excuse(self, hold, time, bounds):
        """Whether this holder, ended by force, may not know it yet."""
        event = self.find(hold)
        if event is None or time < event.values["asked"]:
            return False
        paused = self.story.paused(hold.process, event.values["asked"], time)
        return time <= event.time + bounds.learns + paused
