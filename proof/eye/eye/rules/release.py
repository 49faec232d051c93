"""`release`: the answer to a release is true (contract.md, B6; limits.md, H115)."""

from ..evictions import Evictions
from .tokens import by_grant


def release(book, story, bounds):
    evictions = Evictions(story)
    grants = by_grant(story)
    for hold in story.all_holds():
        answer = hold.released
        if not answer or not hold.releasing:
            continue
        book.look()
        said = answer.values["answer"]
        # What replaced an evicted hold may have been spared.
        evicted = evictions.find_own(hold)
        if said == "yes":
            if hold.releasing.time >= hold.valid_until and not _in_doubt(hold):
                book.find(answer, f"{hold} was released after its validity, and the answer was yes", hold)
            elif evicted and evicted.time < hold.releasing.time and not _handed_on(hold, grants):
                book.find(answer, f"{hold} was ended by force, and its release answered yes", hold)
        elif said == "not_held":
            forced = evictions.find_of_all(hold)
            # The release of several is answered for all of them.
            valid_until = min(other.valid_until for other in evictions.together(hold))
            ended = answer.time >= valid_until or hold.lost or forced and forced.values["asked"] <= answer.time
            if not ended:
                book.find(answer, f"{hold} was valid, and its release answered that it was not held", hold)
        elif not story.faults and answer.time - hold.releasing.time < bounds.op_timeout:
            book.find(answer, f"the release of {hold} failed, and the store had no fault", hold)


def _in_doubt(hold):
    """A hold in doubt is not lost until the store says so (time.md, "Held, suspect, lost"), and the store said that it had it."""
    asked = [event.name for event in hold.lines if event.name in ("held", "suspect")]
    return asked[-1:] == ["suspect"]


def _handed_on(hold, grants):
    """A handover inside the process does not ask the store."""
    return any(other.token > hold.token for other in grants[(hold.key, hold.grant)])
