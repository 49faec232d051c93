"""What a store shows: locks, their holders, how fit it is, and what became of tasks. Each is imported at its first use, for
the import of dataclasses takes longer than the rest of the package.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Dict, Generic, List, Optional, Sequence, Tuple, TypeVar

from . import _errors

if TYPE_CHECKING:
    # Checkers know it without the package.
    from typing_extensions import Literal

T = TypeVar("T")


def _table(head: Tuple[str, ...], rows: Sequence[Tuple[str, ...]], caption: str) -> str:
    """A table for notebooks."""
    from html import escape


    def cells(kind: str, row: Tuple[str, ...]) -> str:
        return "".join(f"<{kind}>{escape(text)}</{kind}>" for text in row)

    lines = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return f"<table><caption>{escape(caption)}</caption><tr>{cells('th', head)}</tr>{lines}</table>"


@dataclass(frozen=True)
class Party:
    """A holder or a waiter."""

    #: ``"exclusive"``, ``"read"``, ``"write"`` or ``"permits"``.
    mode: str
    #: What it says of itself: host, process, script.
    holder: str
    #: How many permits it has or wants.
    permits: Optional[int] = None
    #: The token, of a holder.
    token: Optional[int] = None
    #: Seconds until its lease ends without a renewal.
    remaining: Optional[float] = None
    #: Seconds since it began to hold or to wait.
    age: Optional[float] = None


@dataclass(frozen=True)
class LockView:
    """The state of a key."""

    key: str
    #: ``"mutex"``, ``"rwlock"``, ``"semaphore"``, or ``None`` for a key that nobody uses.
    kind: Optional[str]
    #: The number of permits of a semaphore.
    permits: Optional[int]
    holders: Tuple[Party, ...]
    waiters: Tuple[Party, ...]
    #: The seconds for which the key stays closed, after a task that runs once in each period.
    closed_for: Optional[float]
    closed_by: Optional[str]
    notes: Tuple[str, ...]
    #: The key without the namespace of the connection: what ``lock()`` and ``show()`` take.
    name: str = ""

    def _repr_html_(self) -> str:
        return _table(_HEAD, [_row(self)], self.key)

    @property
    def is_free(self) -> bool:
        """Whether nobody holds the key or waits for it, and it is not closed."""
        return not self.holders and not self.waiters and self.closed_for is None

    @classmethod
    def of(cls, view: Dict[str, Any], namespace: str = "") -> "LockView":
        """Makes it of what the engine returns."""
        name = view["key"][len(namespace) + 1 :] if namespace else view["key"]
        return cls(
            view["key"], view["kind"], view["permits"],
            tuple(Party(**party) for party in view["holders"]),
            tuple(Party(**party) for party in view["waiters"]),
            view["closed_for"], view["closed_by"], tuple(view["notes"]), name,
        )


class LockViews(List[LockView]):
    """The list that ``ls()`` returns. A notebook shows it as a table."""

    def _repr_html_(self) -> str:
        return _table(_HEAD, [_row(view) for view in self], f"{len(self)} keys that are held, waited for or closed")


_HEAD = ("name", "kind", "state", "holders", "token", "waiters", "notes")


def _row(view: LockView) -> Tuple[str, ...]:
    kind = view.kind or ""
    state = "held" if view.holders else "free" if view.is_free else "waited for"
    if view.closed_for is not None:
        state = f"closed for {view.closed_for:.0f} s" + (f" by {view.closed_by}" if view.closed_by else "")
    holders = [f"{it.holder} for {it.age:.0f} s" if it.age is not None else it.holder for it in view.holders]
    tokens = [str(it.token) for it in view.holders if it.token is not None]
    return (
        view.name, f"{kind} of {view.permits}" if view.permits else kind, state, ", ".join(holders), ", ".join(tokens),
        str(len(view.waiters)), "; ".join(view.notes),
    )


@dataclass(frozen=True)
class ForceReleased:
    """The result of a forced release."""

    #: The holders that were evicted.
    evicted: Tuple[Party, ...]
    #: A token above theirs, to set the resource's fence with; ``None`` if none could be drawn at once.
    token: Optional[int]

    @classmethod
    def of(cls, said: Tuple[List[Dict[str, Any]], Optional[int]]) -> "ForceReleased":
        """Makes it of what the engine returns."""
        evicted, token = said
        return cls(tuple(Party(**party) for party in evicted), token)


@dataclass(frozen=True)
class Resized:
    """The result of a change of the number of permits. ``str()`` is a sentence."""

    #: The number before; ``None`` if nobody uses the semaphore, so that there was none to change.
    before: Optional[int]
    #: The number now, or ``None``.
    limit: Optional[int]
    #: How many permits are held now, or ``None``.
    held: Optional[int]
    message: str

    def __str__(self) -> str:
        return self.message


_SEVERITIES = ("ok", "info", "warning", "critical")


@dataclass(frozen=True)
class Finding:
    """One thing that ``doctor()`` found."""

    #: ``"ok"``, ``"info"``, ``"warning"`` or ``"critical"``.
    severity: str
    code: str
    part: Optional[str]
    found: str
    consequence: str
    remedy: str


@dataclass(frozen=True)
class Prepared:
    """What ``init()`` did."""

    store: str
    #: The steps that were taken; none if the store needs no preparation.
    steps: Tuple[str, ...]

    @classmethod
    def of(cls, said: Tuple[str, List[str]]) -> "Prepared":
        """Makes it of what the engine returns."""
        store, steps = said
        return cls(store, tuple(steps))


@dataclass(frozen=True)
class Report:
    """Whether a store is fit for locks."""

    store: str
    findings: Tuple[Finding, ...] = field(default=())

    @property
    def is_fit(self) -> bool:
        """Whether nothing critical was found."""
        return all(finding.severity != "critical" for finding in self.findings)

    def __str__(self) -> str:
        """The table that ``latchwork doctor`` prints."""
        names = [f"{it.code} ({it.part})" if it.part else it.code for it in self.findings]
        width = max(map(len, names), default=0)
        lines = [self.store, ""]
        for finding, name in zip(self.findings, names):
            lines.append(f"{finding.severity:<8}  {name:<{width}}  {finding.found}")
            lines += [
                f"{'':10}{word:>{width}}  {said}"
                for word, said in (("then", finding.consequence), ("do", finding.remedy)) if said
            ]
        return "\n".join([*lines, "", self._verdict()])

    def _verdict(self) -> str:
        worst = max((finding.severity for finding in self.findings), key=_SEVERITIES.index, default="ok")
        return f"{'fit' if self.is_fit else 'NOT fit'} for locks; the worst is {worst}"

    def _repr_html_(self) -> str:
        rows = [
            (it.severity, f"{it.code} ({it.part})" if it.part else it.code, it.found, it.consequence, it.remedy)
            for it in self.findings
        ]
        return _table(("severity", "check", "found", "then", "do"), rows, f"{self.store}: {self._verdict()}")

    @classmethod
    def of(cls, said: Tuple[str, List[Dict[str, Any]]]) -> "Report":
        """Makes it of what the engine returns."""
        store, findings = said
        return cls(store, tuple(Finding(**finding) for finding in findings))


@dataclass(frozen=True)
class Leader:
    """The leader as others see it."""

    #: What the leader says of itself, usually an address.
    candidate: str
    #: The number of its term: its fencing token.
    term: int


@dataclass(frozen=True)
class Skipped:
    """Why there was nothing to do. It is false, as ``if run:`` expects."""

    #: ``"done"``, ``"running"`` or ``"quarantine"``.
    why: str
    #: The same for people: ``done by web-2 pid 812 (report.py)``.
    text: str
    #: The holder that did it or is running it, if the store knows.
    holder: Optional[str] = None
    #: The seconds for which it stays so, if the store knows.
    closed_for: Optional[float] = None
    #: When it was done, in seconds since 1970 by the clock of that host.
    at: Optional[float] = None

    def __bool__(self) -> "Literal[False]":
        return False

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Outcome(Generic[T]):
    """The result of a decorated task."""

    #: Whether it ran here and succeeded.
    ran: bool
    #: What the function returned, if it ran.
    value: Optional[T] = None
    #: Why it did not run.
    skipped: Optional[Skipped] = None
    #: The task ran, but its period could not be closed: another host may run it again.
    not_closed: Optional[_errors.LatchworkError] = None

    def __bool__(self) -> bool:
        return self.ran


for _class in (
    Finding, ForceReleased, Leader, LockView, LockViews, Outcome, Party, Prepared, Report, Resized, Skipped,
):
    _class.__module__ = "latchwork"
