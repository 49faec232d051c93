"""Collects what the rules examined and found, and prints it."""

from .story import MS

SHOWN = 5
LINES = 14


class Finding:
    """One violation: the line that shows it, what is wrong, and the attempts that it is about."""

    __slots__ = ("event", "text", "attempts", "time")

    def __init__(self, event, text, attempts=(), time=None):
        self.event = event
        self.text = text
        self.attempts = attempts
        self.time = event.time if time is None else time


class Book:
    """What one rule examined and found."""

    def __init__(self, rule):
        self.rule = rule
        self.examined = 0
        self.findings = []
        self.excused = 0

    def look(self, count=1):
        self.examined += count

    def find(self, event, text, *attempts, time=None):
        self.findings.append(Finding(event, text, attempts, time))


class Allowance:
    """`--allow RULE:FAULT:AFTER`: findings of the rule during the fault, and for so long after it, are excused; `*` is any fault. With `:WHO`, of the
    attempts that a finding is about, the oldest must be one of this client; with `:+WHO`, the newest of several."""

    def __init__(self, rule, fault, after, who=""):
        self.rule, self.fault, self.after, self.who = rule, fault, after, who

    def is_about(self, finding):
        if not self.who:
            return True
        attempts = sorted(finding.attempts, key=lambda attempt: attempt.granted.time)
        if all(attempt.token for attempt in attempts):
            attempts.sort(key=lambda attempt: attempt.token)
        if self.who.startswith("+"):
            return len(attempts) > 1 and attempts[-1].process.startswith(self.who[1:])
        return bool(attempts) and attempts[0].process.startswith(self.who)

    def spans(self, story):
        after = self.after
        for fault, begin, end in story.faults:
            if self.fault in (fault, "*"):
                yield begin, end + after
        if self.fault in ("stop", "*"):
            for _, begin, end in story.stops:
                yield begin, end + after
        if self.fault in ("kill", "*"):
            for time in story.kills.values():
                yield time, time + after
        if self.fault in ("evict", "*"):
            for event in story.evictions:
                yield event.values["asked"], event.time + after


def excuse(book, allowances, story):
    """Moves the findings that an allowance covers to the excused ones."""
    spans = [(allowed, *span) for allowed in allowances if allowed.rule == book.rule for span in allowed.spans(story)]
    remaining = [f for f in book.findings
                 if not any(begin <= f.time <= end and allowed.is_about(f) for allowed, begin, end in spans)]
    book.excused = len(book.findings) - len(remaining)
    book.findings = remaining


def print_books(books, story, out):
    faults = len(story.faults) + len(story.stops) + len(story.kills)
    print(f"{len(story.events)} events, {sum(len(holds) for holds in story.holds.values())} holds, {faults} faults", file=out)
    print(f"{'rule':<16}{'examined':>10}{'excused':>9}{'violations':>12}", file=out)
    for book in books:
        verdict = "VIOLATED" if book.findings else "kept" if book.examined else "nothing to examine"
        print(f"{book.rule:<16}{book.examined:>10}{book.excused:>9}{len(book.findings):>12}  {verdict}", file=out)
    for book in books:
        for finding in book.findings[:SHOWN]:
            print(f"\n{book.rule}: {finding.event.place()}: {finding.text}", file=out)
            for attempt in finding.attempts:
                print_story(attempt, finding.event, out)
        if len(book.findings) > SHOWN:
            print(f"\n{book.rule}: and {len(book.findings) - SHOWN} more", file=out)


def print_story(attempt, event, out):
    """The lines of an attempt, as milliseconds from the line of the finding."""
    lines = attempt.lines
    cut = len(lines) - LINES
    if cut > 0:
        lines = lines[: LINES // 2] + lines[-LINES // 2 :]
    for line in lines:
        words = line.text.split(" ", 3)[3]
        print(f"  {(line.time - event.time) / MS:>+12.3f} ms  {line.process}  {words}  ({line.place()})", file=out)
    if cut > 0:
        print(f"  {cut} lines of {attempt} in the middle are not shown", file=out)
    if attempt.killed is not None:
        print(f"  {(attempt.killed - event.time) / MS:>+12.3f} ms  {attempt.process} is killed", file=out)
