"""All corruptions by name: a function that changes a history, and the rule that must find it."""

from . import answers, attempts, beside, exclusion, losses, order, tokens, validity, writes

LIES = {}
for module in (exclusion, beside, tokens, validity, losses, writes, answers, order, attempts):
    for lie, rule in module.LIES.items():
        LIES[lie.__name__.replace("_", "-")] = (lie, rule)
