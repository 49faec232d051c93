#!/usr/bin/env python3
"""Writes corrupted copies of a history: python3 proof/eye/corrupt.py FOLDER OUT"""

import argparse
import os
import sys

from eye.lies import LIES
from eye.lies.history import History, NoMaterial
from eye.reading import Unreadable, read_folder


def main(words):
    parser = argparse.ArgumentParser(prog="corrupt.py", description="Writes OUT/NAME for each lie, or for those that are named.")
    parser.add_argument("folder")
    parser.add_argument("out")
    parser.add_argument("--lie", choices=LIES, action="append", metavar="NAME", help="only this one: " + ", ".join(LIES))
    parser.add_argument("--number", type=int, default=7, help="chooses among the places where a lie can be told (7)")
    options = parser.parse_args(words)
    try:
        events = read_folder(options.folder)
        for name in options.lie or LIES:
            corrupt(events, name, options.number).write(os.path.join(options.out, name))
            print(name, LIES[name][1])
    except Unreadable as error:
        print(f"cannot read the history: {error}", file=sys.stderr)
        return 2
    except NoMaterial:
        print(f"this history has nothing for {name}; record a longer one", file=sys.stderr)
        return 3
    return 0


def corrupt(events, name, number):
    """A copy of the history in which this lie is told."""
    history = History.copy(events)
    LIES[name][0](history, number)
    return history


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
