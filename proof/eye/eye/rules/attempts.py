"""`attempts`: each attempt and each process has the shape that docs/history.md gives it."""

WHYS = {"timed_out", "busy", "conflict", "cancelled", "failed", "late", "over"}
HOWS = {"release", "drop"}
ANSWERS = {"yes", "not_held", "failed"}
REASONS = {"expired", "taken", "session_ended", "max_hold", "not_renewed", "expired_at_service", "unknown"}
NEEDS_HOLD = {"renewed", "held", "suspect", "lost", "releasing", "wrote"}


def attempts(book, story, bounds):
    for event, text in story.odd:
        book.find(event, text)
    for attempt in story.attempts.values():
        book.look()
        _walk(book, attempt)
    _processes(book, story)


def _walk(book, attempt):
    """The order of an attempt's lines. What may follow a loss is judged by the rule lost-is-final."""
    state = None
    for event in attempt.lines:
        name = event.name
        if name == "try":
            state = "tried"
        elif state is None:
            continue
        elif name == "blocked":
            if state != "tried":
                book.find(event, f"{attempt} is blocked after it was {state}", attempt)
            if not attempt.first.values["fair"]:
                book.find(event, f"{attempt} is not fair and has a place in the queue", attempt)
        elif name == "granted":
            if state != "tried":
                book.find(event, f"{attempt} is granted after it was {state}", attempt)
            state = "granted"
        elif name == "gave_up":
            if state != "tried":
                book.find(event, f"{attempt} gives up after it was {state}", attempt)
            if attempt.first.values["waits"] and event.values["why"] == "busy":
                book.find(event, f"{attempt} waits, and ends with busy", attempt)
            state = "given up"
        elif name == "releasing":
            if state != "granted":
                book.find(event, f"{attempt} is released after it was {state}", attempt)
            state = "releasing"
        elif name == "released":
            if state != "releasing":
                book.find(event, f"{attempt} has an answer to no release", attempt)
            elif attempt.releasing.values["how"] == "drop":
                book.find(event, f"{attempt} was dropped, and nobody waits for an answer", attempt)
            state = "released"
        elif name in NEEDS_HOLD and state != "granted":
            book.find(event, f"{name} of {attempt} after it was {state}", attempt)
        _words(book, attempt, event)


def _words(book, attempt, event):
    allowed = {"gave_up": ("why", WHYS), "releasing": ("how", HOWS), "released": ("answer", ANSWERS),
               "lost": ("reason", REASONS)}.get(event.name)
    if allowed and event.values[allowed[0]] not in allowed[1]:
        book.find(event, f"{event.values[allowed[0]]!r} is no {allowed[0]}", attempt)


def _processes(book, story):
    """A process begins once, says nothing before that, nothing after its end, and holds nothing at its end."""
    started, ended = set(), {}
    for event in story.events:
        process = event.process
        if process in ("run", "resource"):
            continue
        if event.name == "started":
            if process in started:
                book.find(event, f"{process} starts twice")
            started.add(process)
            if process in story.kills and event.time > story.kills[process]:
                book.find(event, f"{process} starts after it was killed")
        elif process not in started:
            book.find(event, f"{process} says {event.name} before it started")
            started.add(process)
        elif process in ended and event.name != "stalled":
            book.find(event, f"{process} says {event.name} after its end")
        if event.name == "ended":
            ended[process] = event
    for attempt in story.attempts.values():
        end = ended.get(attempt.process)
        if end and attempt.over() is None:
            book.find(end, f"{attempt} has no end, and its process has ended", attempt)
