"""What decides which matches become alerts: a rule processor has a list of filters, and asks one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, TypeAlias

from samovar.changelog.log import Pair
from samovar.patterns.engine.matcher import MatchHeader
from samovar.tasks.model.results import Counts


class Alarm(NamedTuple):
    """A record of the alerts topic about a rule, not a key."""

    id: str
    record: Pair


Alert: TypeAlias = MatchHeader | Alarm


class AlertFilter(Protocol):
    """Judges matches by their headers alone: only those that are left get a message."""

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to judge at the moment, and no header needs to be looked at."""
        ...

    def left(self, alerts: Sequence[Alert], counts: Counts) -> list[Alert]:
        """Those that are raised; the others are counted."""
        ...
