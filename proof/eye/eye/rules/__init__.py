"""All rules by name. A rule is a function of a book, a story and the bounds."""

from . import attempts, beside, exclusion, fence, kept, leftovers, loss, queue, release, tokens, validity

RULES = {
    "attempts": attempts.attempts,
    "exclusion": exclusion.exclusion,
    "beside": beside.beside,
    "token-unique": tokens.unique,
    "token-order": tokens.order,
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
    "ghost": leftovers.ghost,
    "calm": leftovers.calm,
}
