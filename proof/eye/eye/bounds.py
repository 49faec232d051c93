"""The lengths that the rules use. README.md says where each comes from."""

from .story import MS


class Bounds:
    def __init__(self, ttl, told=250 * MS, slack=250 * MS, patience=2_000 * MS, ends=None):
        self.ttl = ttl
        self.ends = ends or ttl
        self.told = told
        self.slack = slack
        self.patience = patience

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
        return self.ttl // 3 + self.op_timeout + self.slack
