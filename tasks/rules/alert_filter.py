"""What decides which matches become alerts: a rule processor has a list of filters, and asks one after the other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import count
from typing import NamedTuple, Protocol, TypeAlias

from samovar.changelog.log import Pair
from samovar.patterns.engine.matcher import MatchHeader
from samovar.tasks.model.plan import PublishedRule
from samovar.tasks.model.results import Counts

_SERIALS = count()


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

    def left(self, alerts: Sequence[Alert], counts: Counts) -> list[Alert]:
        """Those that are raised; the others are counted."""


class ShadowFilter:
    """A rule in shadow is counted and raises no alert; nor does one whose history is too short yet, nor a version that
    drains, but for matches that began before another took its place. Most tasks have no such rule.

    A match is judged by what it says itself and by what the journal says about its rule: a replay mutes the same ones.
    The kernel does it, which then makes no message (`States.mute`).
    """

    def __init__(self, rules: Sequence[PublishedRule]) -> None:
        self.is_idle = not any(rule.may_be_muted for rule in rules)
        self.serial = next(_SERIALS)  # no other of this process has it
        self.muted: Counter[str] = Counter()  # matches per rule, since these rules began here

    def left(self, alerts: Sequence[Alert], counts: Counts) -> list[Alert]:
        muted = [alert for alert in alerts if isinstance(alert, MatchHeader) and alert.is_muted]
        self.muted.update(alert.rule for alert in muted)
        counts.muted += len(muted)
        return [alert for alert in alerts if not (isinstance(alert, MatchHeader) and alert.is_muted)]
