"""Which matches become alerts. A rule in shadow is counted and raises none; nor does one whose history is too short
yet, nor a version that drains, but for matches that began before another took its place.

A match is judged by what it says itself and by what the journal says about its rule: a replay mutes the same ones.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from itertools import count
from typing import Any

from samovar.changelog.log import Pair
from samovar.tasks.plan import RuleText

_SERIALS = count()


class Muting:
    """The rules of one task that do not simply alert; most tasks have none, and then nothing is looked at."""

    def __init__(self, rules: Sequence[RuleText]) -> None:
        self._rules = {head_of(rule): rule for rule in rules if may_be_muted(rule)}
        self._heads = tuple(self._rules)
        self.serial = next(_SERIALS)  # no other of this process has it
        self.muted: Counter[str] = Counter()  # matches a rule, since these rules began here

    @property
    def is_idle(self) -> bool:
        return not self._heads

    def left(self, alerts: Sequence[Pair]) -> list[Pair]:
        """Those that are to be raised."""
        found = []
        for key, value in alerts:
            rule = self._rule(value or b"")
            if rule is not None and is_muted(rule, json.loads(value or b"{}")):
                self.muted[rule.id] += 1
            else:
                found.append((key, value))
        return found

    def _rule(self, value: bytes) -> RuleText | None:
        if not value.startswith(self._heads):
            return None
        return next(rule for head, rule in self._rules.items() if value.startswith(head))


def is_muted(rule: RuleText, match: dict[str, Any]) -> bool:
    if rule.began_by_ms is not None and match["start"] > rule.began_by_ms:
        return True
    return rule.shadow or (rule.alerts_from_ms is not None and match["at"] < rule.alerts_from_ms)


def may_be_muted(rule: RuleText) -> bool:
    return rule.shadow or rule.alerts_from_ms is not None or rule.began_by_ms is not None


def head_of(rule: RuleText) -> bytes:
    """How the matches of a rule's version begin."""
    return f'{{"rule": {json.dumps(rule.id)}, "version": {json.dumps(rule.version)}, '.encode()
