"""Histories by hand: lines in milliseconds, which the rules get as they would be read."""

import io
import os
import re
import tarfile
import tempfile
import unittest

from eye.bounds import Bounds
from eye.reading import read_text
from eye.report import Book
from eye.rules import RULES
from eye.story import MS, Story

RECORDED = os.path.join(os.path.dirname(__file__), "..", "histories", "files.tar.xz")
TTL = 1000
TRY = "try attempt={0} key={1} mode={2} fair={3} waits=true several=false"
IN_MS = ("valid_until", "ttl", "since", "asked", "remaining", "length")


def history(text):
    """Each line: MILLISECONDS PROCESS EVENT VALUES. Times and lengths are in milliseconds; a task is not told."""
    lines = []
    for line in filter(None, map(str.strip, text.splitlines())):
        time, process, rest = line.split(" ", 2)
        rest = re.sub(rf"\b({'|'.join(IN_MS)})=(\d+(?:\.\d+)?)", lambda m: f"{m[1]}={nanoseconds(m[2])}", rest)
        task = "1" if "attempt=" in rest and process != "resource" else "-"
        lines.append(f"{nanoseconds(time)} {process} {task} {rest}")
    started = [f"0 {process} - started pid=1 seed=1" for process in sorted(set(re.findall(r"\bw\d\.\d\b", text)))]
    events = read_text("\n".join(started + lines) + "\n", "hand.log")
    return sorted(events, key=lambda event: event.time)


def nanoseconds(milliseconds):
    return int(float(milliseconds) * MS)


def hold(process, begin, end, token, attempt=1, key="k", mode="exclusive", fair="false", beside=None):
    """A whole attempt that is granted a millisecond after its try and released. `beside`: it replaces that hold."""
    beside = "" if beside is None else f" beside={beside}"
    return f"""
    {begin - 1} {process} {TRY.format(attempt, key, mode, fair)}{beside}
    {begin} {process} granted attempt={attempt} token={token * 1024} ttl={TTL} valid_until={begin + 980}
    {end} {process} releasing attempt={attempt} how=release
    {end + 1} {process} released attempt={attempt} answer=yes
    """


class RuleCase(unittest.TestCase):
    """A case of one rule, with a history that it accepts and others that it must refuse."""

    rule = None

    def judge(self, text, rule=None):
        story = Story(history(text))
        book = Book(rule or self.rule)
        RULES[rule or self.rule](book, story, Bounds(TTL * MS))
        return book

    def accepts(self, text, rule=None):
        book = self.judge(text, rule)
        self.assertEqual([finding.text for finding in book.findings], [])
        self.assertGreater(book.examined, 0)

    def refuses(self, text, words, rule=None):
        findings = self.judge(text, rule).findings
        self.assertTrue(any(re.search(words, finding.text) for finding in findings), [finding.text for finding in findings])


def recorded():
    """A temporary folder with the recorded history, for `with`."""
    folder = tempfile.TemporaryDirectory()
    with open(RECORDED, "rb") as file, tarfile.open(fileobj=io.BytesIO(file.read())) as archive:
        for member in archive.getmembers():
            with open(os.path.join(folder.name, os.path.basename(member.name)), "wb") as out:
                out.write(archive.extractfile(member).read())
    return folder
