"""A change of rules or lists before it happens: what would be written, and what it would do.

The document of `--json`, and of the HTTP API:

    {"change", "act", "findings": [...], "rules": [{"name", "number", "version", "status", "diff", "state", "states",
     "states_whole", "cold_start"}, ...], "lists": {name: {"added", "removed", "items"}}, "stages": {"new", "gone"},
     "seeds": [...], "unchanged": [...]}

`state` is what becomes of a rule's partial matches: `new` (there are none), `kept`, `moved` (kept under a changed
list), `drained`, `dropped`; `states` how many keys have one in the stores of this machine, null where it has none, and
at least so many where they are too many to count (`states_whole` is false).
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from samovar.changelog.formats.rules_topic import AT_WORK, Change, ListRecord, RuleRecord
from samovar.patterns.explain.phrases import counted, duration_words
from samovar.patterns.syntax.findings import Finding, to_json

NEW, KEPT, MOVED, DRAINED, DROPPED = "new", "kept", "moved", "drained", "dropped"


STATE_TEXTS = {
    NEW: "none, the rule is new",
    KEPT: "kept, the version is the same",
    MOVED: "kept; what was collected stays as it was judged, from here on the new list counts",
    DRAINED: "drained: matches that have begun go on under the old version, new ones begin under this one",
    DROPPED: "dropped",
}


@dataclass(frozen=True, kw_only=True)
class RuleChange:
    """What a change does to one rule."""

    rule: RuleRecord
    diff: str
    state: str
    states: int | None = None
    cold_ms: int = 0  # in shadow for so long, since it begins with no history
    states_whole: bool = True

    def to_json(self) -> dict[str, Any]:
        data = {name: getattr(self.rule, name) for name in ("name", "number", "version", "status")}
        data |= {name: getattr(self, name) for name in ("diff", "state", "states", "states_whole")}
        cold = {"shadow_ms": self.cold_ms, "warm_from_ms": self.rule.warm_from_ms, "text": self.cold_text()}
        return data | {"cold_start": cold}

    def cold_text(self) -> str:
        if self.state in (KEPT, MOVED):
            return "none, it goes on with its history"
        if self.rule.warm_from_ms is not None:
            return "its history is folded before it may alert"
        if not self.cold_ms:
            return "it may alert at once"
        span = duration_words(self.cold_ms)
        return f"it begins with no history, and stays in shadow for its longest span, {span} of event time"

    def state_text(self) -> str:
        text = STATE_TEXTS[self.state]
        if self.states is None or self.state == NEW:
            return text
        least = "" if self.states_whole else "at least "
        return f"{text} ({least}{counted(self.states, 'state')} on this machine)"


@dataclass(frozen=True, kw_only=True)
class ChangePlan:
    """A change that was looked at. `base` is the last change when that was done: one in between overtakes it."""

    base: int
    act: str
    rules: tuple[RuleChange, ...] = ()
    lists: Mapping[str, ListRecord] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    seeds: tuple[RuleRecord, ...] = ()
    new_stages: tuple[str, ...] = ()
    gone_stages: tuple[str, ...] = ()
    backtest: Mapping[str, Any] | None = None
    unchanged: tuple[str, ...] = ()  # rules that were given, and are there like this already

    @property
    def number(self) -> int:
        return self.base + 1 + bool(self.seeds)

    def changes(self, author: str, note: str, at_ms: int, fields: Mapping[str, Any]) -> list[Change]:
        """The records to write. The first change of all begins with what the folder has."""
        seed = Change(
            number=1,
            act="seed",
            author=author,
            at_ms=at_ms,
            note="as in the rules folder",
            rules=self.seeds,
            lists={},
            fields=fields,
        )
        rules = () if self.lists else tuple(each.rule for each in self.rules)
        own = Change(
            number=self.number,
            act=self.act,
            author=author,
            at_ms=at_ms,
            note=note,
            rules=rules,
            lists=self.lists,
            fields=fields,
        )
        return [seed, own] if self.seeds else [own]

    def to_json(self) -> dict[str, Any]:
        return {
            "change": self.number,
            "act": self.act,
            "findings": [to_json(finding) for finding in self.findings],
            "rules": [rule.to_json() for rule in self.rules],
            "lists": {
                name: {"items": len(each.items), "added": list(each.added), "removed": list(each.removed)}
                for name, each in self.lists.items()
            },
            "stages": {"new": list(self.new_stages), "gone": list(self.gone_stages)},
            "seeds": [rule.name for rule in self.seeds],
            "unchanged": list(self.unchanged),
            "backtest": None if self.backtest is None else dict(self.backtest),
        }

    def as_text(self) -> str:
        lines = [f"change {self.number}: {self.act}"]
        if self.seeds:
            rules = f"the {counted(len(self.seeds), 'rule')} of the rules folder"
            lines.append(f"{rules} are written down as number 1; from here on the folder is not read")
        for each in self.rules:
            rule = each.rule
            lines.append(f"{rule.name}: number {rule.number}, version {rule.version}, {rule.status}")
            lines.append(f"  partial matches: {each.state_text()}")
            if rule.status in AT_WORK:
                lines.append(f"  cold start: {each.cold_text()}")
            lines += [f"  {line}" for line in each.diff.splitlines()]
        if self.unchanged:
            lines.append(f"left out, published like this already: {', '.join(self.unchanged)}")
        for name, record in self.lists.items():
            did = f"{len(record.added)} added, {len(record.removed)} removed, {len(record.items):,} items"
            lines.append(f"list {name}: {did}")
        if self.new_stages:
            lines.append(f"stages {', '.join(self.new_stages)} are made: containers begin to read further topics")
        if self.gone_stages:
            lines.append(f"stages {', '.join(self.gone_stages)} are no more, and what they hold is dropped")
        return "\n".join(lines)


def diff_of(before: str, after: str, name: str, old: int, new: int) -> str:
    """Two texts of a rule, line by line; empty where they are the same."""
    lines = difflib.unified_diff(
        before.splitlines(), after.splitlines(), f"{name} {old}", f"{name} {new}", lineterm="", n=2
    )
    return "\n".join(lines)
