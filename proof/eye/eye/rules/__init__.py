"""All rules by name. A rule is a function of a book, a story and the bounds."""

from . import attempts, beside, exclusion, fence, kept, leftovers, loss, passing, queue, release, tokens, validity

RULES = {
    "attempts": attempts.attempts,
    "exclusion": exclusion.exclusion,
    "beside": beside.beside,
    "token-unique": tokens.unique,
    "token-order": tokens.order,
    "forgotten-claim": tokens.forgotten,
    "validity": validity.validity,
    "held": validity.held,
    "lost-is-final": loss.final,
    "loss-reason": loss.reason,
    "told": loss.told,
    "fence": fence.fence,
    "writes": fence.writes,
    "release": release.release,
    "kept": kept.kept,
    "fair": queue.fair,
    "handed-on": queue.handed_on,
    "release-counts": passing.release_counts,
    "takeover": passing.takeover,
    "unfairness": passing.unfairness,
    "done-once": passing.done_once,
    "ghost": leftovers.ghost,
    "calm": leftovers.calm,
}
