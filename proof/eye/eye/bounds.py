"""The lengths that the rules use. README.md says where each comes from."""

from .story import MS


class Bounds:
    """What the documents do not say of a store, or of a run, is told by the options of check.py."""

    def __init__(self, ttl, **told):
        self.ttl = ttl
        self.ends = self.settle = ttl
        self.told = self.slack = 250 * MS
        self.patience = 2_000 * MS
        self.slice = 10 * MS
        self.relay = self.travel = 0
        self.wake = ttl // 2
        self.cut = None
        for name, value in told.items():
            if value is not None:
                setattr(self, name, value)
        self.takeover = told.get("takeover") or self.ends + self.check_every + self.op_timeout + self.slack

    @property
    def op_timeout(self):
        """time.md, "Renewal": op_timeout(ttl) = min(ttl / 4, 2 s)."""
        return min(self.ttl // 4, 2_000 * MS)

    @property
    def check_every(self):
        """time.md, "Trying and waiting": a waiter checks at the latest a third of its ttl after the last try."""
        return self.ttl // 3

    @property
    def learns(self):
        """limits.md, H9: a holder learns of an eviction at its next renewal, a third of the ttl later, with its timeout."""
        return self.ttl // 3 + self.op_timeout + self.relay + self.travel + self.slack
