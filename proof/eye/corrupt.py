#!/usr/bin/env python3
"""Writes corrupted copies of a history: python3 proof/eye/corrupt.py FOLDER OUT"""

import argparse
import os
import random
import sys

import check
from eye.lies import LIES
from eye.lies.history import Choice, History, NoMaterial
from eye.reading import Unreadable, read_folder


def arguments(words):
    parser = argparse.ArgumentParser(prog="corrupt.py", description="Writes OUT/NAME for each lie, or for those that are named.",
                                     epilog="With --judge, exits 1 if the rule that a lie is about does not find it.")
    parser.add_argument("folder")
    parser.add_argument("out")
    parser.add_argument("--lie", choices=LIES, action="append", metavar="NAME", help="only this one: " + ", ".join(LIES))
    parser.add_argument("--number", type=int, default=7, help="chooses among the places where a lie can be told (7)")
    parser.add_argument("--count", type=int, help="only so many lies, drawn by the number")
    parser.add_argument("--settle", type=check.duration, default=0, metavar="LENGTH",
                        help="a lie that needs a calm place is told so far from faults; a ttl if that is longer")
    parser.add_argument("--judge", nargs=argparse.REMAINDER, metavar="...",
                        help="judge each copy as check.py does with the words that follow, and tell no lie where they excuse it")
    return parser.parse_args(words)


def main(words):
    options = arguments(words)
    try:
        events = read_folder(options.folder)
        return (write if options.judge is None else judge)(events, options)
    except Unreadable as error:
        print(f"cannot read the history: {error}", file=sys.stderr)
        return 2


def write(events, options):
    for name in drawn(options):
        try:
            history = corrupt(events, name, Choice(options.number, settle=options.settle))
        except NoMaterial:
            print(f"this history has nothing for {name}; record a longer one", file=sys.stderr)
            return 3
        history.write(os.path.join(options.out, name))
        print(name, LIES[name][1])
    return 0


def judge(events, options):
    """Prints each lie, its rule, and what became of it."""
    judged_by = check.arguments([options.folder, *options.judge])
    left, unseen = options.count, 0
    settle = max(options.settle, judged_by.settle or 0)
    for name in drawn(options, all_of_them=True):
        if left == 0:
            break
        rule = LIES[name][1]
        excused = [allowed for allowed in judged_by.allow if allowed.rule == rule]
        try:
            if rule in judged_by.without:
                raise NoMaterial
            history = corrupt(events, name, Choice(options.number, excused, settle))
        except NoMaterial:
            print(name, rule, "no-place")
            continue
        _, books = check.judge(history.in_order(), judged_by, only=rule)
        found = any(book.findings for book in books)
        unseen += not found
        history.write(os.path.join(options.out, name))
        print(name, rule, "found" if found else "unseen")
        left = None if left is None else left - 1
    return 1 if unseen else 0


def drawn(options, all_of_them=False):
    """The lies in the order in which they are told."""
    names = options.lie or list(LIES)
    if options.count is not None:
        random.Random(options.number).shuffle(names)
    return names if all_of_them else names[: options.count]


def corrupt(events, name, choice):
    """A copy of the history in which this lie is told."""
    history = History.copy(events)
    LIES[name][0](history, choice.at(history.story))
    return history


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
