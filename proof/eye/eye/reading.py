"""Reads the lines of a history: docs/history.md, "A line" and the tables of events."""

import os
import re
from urllib.parse import unquote_to_bytes

NUMBER = "number"
TRUTH = "truth"
TEXT = "text"

WORKER = {
    "started": {"pid": NUMBER, "seed": NUMBER},
    "ended": {},
    "stalled": {"length": NUMBER},
    "try": {"attempt": NUMBER, "key": TEXT, "mode": TEXT, "fair": TRUTH, "waits": TRUTH, "several": TRUTH,
            "beside": NUMBER},
    "blocked": {"attempt": NUMBER},
    "gave_up": {"attempt": NUMBER, "why": TEXT},
    "granted": {"attempt": NUMBER, "token": NUMBER, "ttl": NUMBER, "valid_until": NUMBER},
    "renewed": {"attempt": NUMBER, "valid_until": NUMBER},
    "held": {"attempt": NUMBER, "valid_until": NUMBER},
    "suspect": {"attempt": NUMBER},
    "lost": {"attempt": NUMBER, "since": NUMBER, "reason": TEXT},
    "releasing": {"attempt": NUMBER, "how": TEXT},
    "released": {"attempt": NUMBER, "answer": TEXT},
    "wrote": {"attempt": NUMBER, "token": NUMBER, "accepted": TRUTH},
    "waiting": {"key": TEXT},
    "alarm": {"key": TEXT, "kind": TEXT},
}
RESOURCE = {
    "judged": {"order": NUMBER, "key": TEXT, "by": TEXT, "attempt": NUMBER, "token": NUMBER, "accepted": TRUTH},
}
RUN = {
    "killed": {"whom": TEXT},
    "stopped": {"whom": TEXT},
    "continued": {"whom": TEXT},
    "struck": {"fault": TEXT},
    "healed": {"fault": TEXT},
    "evicted": {"key": TEXT, "grant": NUMBER, "asked": NUMBER},
    "kept": {"key": TEXT, "grant": NUMBER, "asked": NUMBER, "remaining": NUMBER},
    "inspected": {"entries": NUMBER},
    "ghost": {"name": TEXT, "what": TEXT},
    "starved": {"length": NUMBER},
}
# The store of a run with mem: lives in its only process, so that process searches it for leftovers.
WORKER.update({name: RUN[name] for name in ("kept", "evicted", "inspected", "ghost")})
# Values that a line may lack.
OPTIONAL = {"beside"}
TABLES = {"resource": RESOURCE, "run": RUN}
PERMITS = re.compile(r"permits:([1-9][0-9]*)/([1-9][0-9]*)\Z")
LARGEST = 2**64


class Unreadable(Exception):
    """A line that is none of docs/history.md, or a folder without a history."""


class Event:
    """One line. `values` are decoded; `file` and `number` say where it was read."""

    __slots__ = ("time", "process", "task", "name", "values", "file", "number", "text")

    def __init__(self, time, process, task, name, values, file, number, text):
        self.time = time
        self.process = process
        self.task = task
        self.name = name
        self.values = values
        self.file = file
        self.number = number
        self.text = text

    def place(self):
        return f"{self.file}:{self.number}"


def number(word):
    if not (word.isascii() and word.isdigit()):
        raise ValueError(f"{word!r} is no decimal number")
    value = int(word)
    if value >= LARGEST:
        raise ValueError(f"{word} is not below 2^64")
    return value


def text(word):
    if "%" not in word:
        return word
    if re.search(r"%(?![0-9A-Fa-f]{2})", word):
        raise ValueError(f"{word!r} has a % without two hexadecimal digits")
    return unquote_to_bytes(word).decode("utf-8", "surrogateescape")


def truth(word):
    if word not in ("true", "false"):
        raise ValueError(f"{word!r} is neither true nor false")
    return word == "true"


KINDS = {NUMBER: number, TEXT: text, TRUTH: truth}


def read_line(line, file, row):
    """The event of one line without its LF."""
    try:
        words = line.split(" ")
        if len(words) < 4:
            raise ValueError("fewer than four words")
        process = text(words[1])
        table = TABLES.get(process, WORKER)
        fields = table.get(words[3])
        if fields is None:
            raise ValueError(f"{process} has no event {words[3]!r}")
        if words[2] != "-":
            number(words[2])
        values = {}
        for word in words[4:]:
            name, found, value = word.partition("=")
            kind = fields.get(name)
            if kind is None or not found or name in values:
                raise ValueError(f"{word!r} is no value of {words[3]}, or is there twice")
            values[name] = KINDS[kind](value)
        missing = ", ".join(name for name in fields if name not in values and name not in OPTIONAL)
        if missing:
            raise ValueError(f"{words[3]} lacks {missing}")
        return Event(number(words[0]), process, words[2], words[3], values, file, row, line)
    except ValueError as error:
        raise Unreadable(f"{file}:{row}: {error}") from None


def read_text(content, file):
    """The events of one file. A last line without LF is torn, and left out."""
    lines = content.split("\n")
    return [read_line(line, file, row) for row, line in enumerate(lines[:-1], 1)]


def read_folder(folder):
    """All events of a folder in order of time; lines with equal times keep the order of their file."""
    try:
        names = sorted(name for name in os.listdir(folder) if name.endswith(".log"))
    except OSError as error:
        raise Unreadable(f"{folder}: {error.strerror}") from None
    if not names:
        raise Unreadable(f"{folder}: no *.log file; give the folder of a run")
    events = []
    for name in names:
        with open(os.path.join(folder, name), encoding="utf-8", errors="surrogateescape", newline="\n") as file:
            events.extend(read_text(file.read(), name))
    if not events:
        raise Unreadable(f"{folder}: its *.log files have no line")
    events.sort(key=lambda event: event.time)
    return events
