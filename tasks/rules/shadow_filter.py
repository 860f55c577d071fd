"""Which matches become alerts. A rule in shadow is counted and raises none; nor does one whose history is too short
yet, nor a version that drains, but for matches that began before another took its place.

A match is judged by what it says itself and by what the journal says about its rule: a replay mutes the same ones. The
kernel does it, which then makes no message (`States.mute`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import count

from samovar.patterns.engine.matcher import MatchHeader
from samovar.tasks.model.plan import PublishedRule
from samovar.tasks.model.results import Counts
from samovar.tasks.rules.alert_filter import Alert

_SERIALS = count()


class ShadowFilter:
    """The rules of one task that do not simply alert; most tasks have none, and then nothing is looked at."""

    def __init__(self, rules: Sequence[PublishedRule]) -> None:
        self.is_idle = not any(map(may_be_muted, rules))
        self.serial = next(_SERIALS)  # no other of this process has it
        self.muted: Counter[str] = Counter()  # matches per rule, since these rules began here

    def left(self, alerts: Sequence[Alert], counts: Counts) -> list[Alert]:
        """Those that are to be raised."""
        muted = [alert.rule for alert in alerts if isinstance(alert, MatchHeader) and alert.is_muted]
        self.muted.update(muted)
        counts.muted += len(muted)
        return [alert for alert in alerts if not (isinstance(alert, MatchHeader) and alert.is_muted)]


def may_be_muted(rule: PublishedRule) -> bool:
    return rule.shadow or rule.alerts_from_ms is not None or rule.began_by_ms is not None
