"""Where a container's plans come from while it runs: rules may be published at any moment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from samovar.patterns.engine.matcher import RuleFailure
from samovar.tasks.model.plan import Plan


class RuleSource(Protocol):
    """Makes plans next to the container's loop, which only asks whether there are newer ones."""

    @property
    def trouble(self) -> str | None:
        """Why the last change is not taken."""
        ...

    def newer(self) -> Sequence[Plan] | None:
        """Plans that were not given out yet; never waits."""
        ...

    def look(self) -> None:
        """Read all that was published by now."""
        ...

    def quarantine(self, failure: RuleFailure) -> None:
        """Tell all tasks that a rule was taken out; never waits."""
        ...


class Never:
    """The rules never change: those of a test, or of a service without a rules topic."""

    trouble = None

    def newer(self) -> None:
        return None

    def look(self) -> None:
        """There is nothing to read."""

    def quarantine(self, failure: RuleFailure) -> None:
        """There is nobody to tell."""
