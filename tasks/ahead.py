"""When a container takes its next records while a commit is under way: so late that it is done when that is, since what
is taken earlier leaves more behind for the commit after the next.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

SWITCH_S = 0.0005  # by default ten times that, each time that a commit has to go on with its next step
WEIGHT = 0.2  # of the newest, in the two means


@dataclass
class HeadStart:
    """How long commits and takes last lately."""

    commit_s: float = 0.0
    take_s: float = 0.0

    def committed(self, seconds: float) -> None:
        self.commit_s += WEIGHT * (seconds - self.commit_s)

    def took(self, seconds: float) -> None:
        self.take_s += WEIGHT * (seconds - self.take_s)

    @property
    def wait_s(self) -> float:
        """From the begin of a commit until records are taken."""
        return max(self.commit_s - self.take_s, 0.0)


@contextmanager
def quick_switches() -> Iterator[None]:
    """A commit on its own thread gets its turn soon while records are fed."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_S)
    try:
        yield
    finally:
        sys.setswitchinterval(before)
