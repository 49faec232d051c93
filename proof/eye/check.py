#!/usr/bin/env python3
"""Judges the history of a run: python3 proof/eye/check.py FOLDER"""

import argparse
import sys

from eye.bounds import Bounds
from eye.reading import Unreadable, read_folder
from eye.report import Allowance, Book, excuse, print_books
from eye.rules import RULES
from eye.story import MS, Story

LENGTHS = {
    "told": "how late a holder may be told of its loss (250ms)",
    "ends": "for how long the store may keep a claim after its last renewal (the ttl)",
    "settle": "for how long after a fault nothing is judged that it may delay (the ttl)",
    "takeover": "how soon the key of a killed holder passes on (--ends, a third of the ttl, and the timeout)",
    "wake": "how soon a released key passes on (half the ttl)",
    "patience": "for how long a waiter that could come may let others wait (2s)",
    "slice": "for how long a hold may be handed on inside a process (10ms)",
    "travel": "for how long the run held back answers of the store (0ms)",
    "relay": "how much later than a client of the store a client of the service learns of an eviction (0ms)",
    "slack": "what bounds over several processes allow for scheduling (250ms)",
}
UNITS = {"ms": MS, "s": 1000 * MS}


def duration(word):
    for unit, factor in UNITS.items():
        figures = word[: -len(unit)]
        if word.endswith(unit) and figures.replace(".", "", 1).isdigit():
            return int(float(figures) * factor)
    raise argparse.ArgumentTypeError(f"{word!r} is no length of time; write 2s or 250ms")


def allowance(word):
    parts = word.split(":")
    if len(parts) not in (3, 4) or parts[0] not in RULES:
        raise argparse.ArgumentTypeError(f"{word!r} is not RULE:FAULT:AFTER_SECONDS[:WHO] with a rule of {', '.join(RULES)}")
    try:
        return Allowance(parts[0], parts[1], int(float(parts[2]) * 1000 * MS), *parts[3:])
    except ValueError:
        raise argparse.ArgumentTypeError(f"{parts[2]!r} in {word!r} is no number of seconds") from None


def arguments(words):
    parser = argparse.ArgumentParser(prog="check.py", description="Judges the history of a run by the documents alone.",
                                     epilog="Exits 1 on a violation, 2 on an unreadable history, 3 if a required rule had nothing to examine.")
    parser.add_argument("folder")
    parser.add_argument("--ttl", type=duration, help="the ttl that the holds were asked for; the largest granted one if not given")
    for name, meaning in LENGTHS.items():
        parser.add_argument(f"--{name}", type=duration, help=meaning)
    parser.add_argument("--cut", metavar="PREFIX", help="of keys whose holders may go without a word: nothing is said of how soon they pass on")
    parser.add_argument("--allow", type=allowance, action="append", default=[], metavar="RULE:FAULT:AFTER_SECONDS[:WHO]",
                        help="excuse violations of the rule during the fault and for so long after it; with WHO, only where its hold is "
                        "the older one, with +WHO, where it is the newer one")
    parser.add_argument("--without", choices=RULES, action="append", default=[], metavar="RULE", help="do not judge by this rule")
    parser.add_argument("--require", choices=RULES, action="append", default=[], metavar="RULE",
                        help="fail if this rule had nothing to examine")
    return parser.parse_args(words)


def judge(events, options, only=None):
    """The books of all rules, or of only one, and the story that they were written about."""
    story = Story(events)
    bounds = Bounds(options.ttl or story.ttl, cut=options.cut, **{name: getattr(options, name) for name in LENGTHS})
    books = []
    for name, rule in RULES.items():
        if name in options.without or only not in (None, name):
            continue
        book = Book(name)
        rule(book, story, bounds)
        excuse(book, options.allow, story)
        books.append(book)
    return story, books


def main(words, out=sys.stdout):
    options = arguments(words)
    try:
        story, books = judge(read_folder(options.folder), options)
    except Unreadable as error:
        print(f"cannot read the history: {error}", file=sys.stderr)
        return 2
    print_books(books, story, out)
    if any(book.findings for book in books):
        return 1
    empty = [book.rule for book in books if book.rule in options.require and not book.examined]
    for rule in empty:
        print(f"{rule} had nothing to examine, and was required", file=out)
    return 3 if empty else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
