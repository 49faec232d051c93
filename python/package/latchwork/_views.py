"""What a store shows: locks, their holders, and how fit it is."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional, Tuple


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
        worst = max((finding.severity for finding in self.findings), key=_SEVERITIES.index, default="ok")
        return "\n".join([*lines, "", f"{'fit' if self.is_fit else 'NOT fit'} for locks; the worst is {worst}"])

    @classmethod
    def of(cls, said: Tuple[str, List[Dict[str, Any]]]) -> "Report":
        """Makes it of what the engine returns."""
        store, findings = said
        return cls(store, tuple(Finding(**finding) for finding in findings))
