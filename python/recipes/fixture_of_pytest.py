"""A fixture of pytest: tests that share something run one at a time, also across the workers of pytest-xdist and CI jobs of
one machine."""

import pytest

import latchwork


@pytest.fixture
def alone(tmp_path_factory):
    with latchwork.connect(namespace="tests") as locks:
        with locks.lock("the-printer").acquire(timeout=60) as guard:
            yield guard
