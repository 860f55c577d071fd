"""The storm guard: a rule that raises more alerts than its limit is throttled, with an alarm and a count.

Alerts of a rule are counted in windows of event time, in each task. Once the alerts of earlier moments of a window are
as many as the limit, the others of that window are kept back: all that happen at one moment share one fate, so that how
the input was cut into batches makes no difference. The count is a row of the store, and so a replay throttles the same:

    b"v" + rule   JSON: `v` first, then the fields of `AlertWindow`
    b"v"          JSON: `v` first, `limits`: what was in force; other ones are a journal entry of the rules

The first alert that is kept back becomes an alarm, a record of the alerts topic that has the form of an alert and an
`alarm`: it stands until a window has passed in which nothing was kept back. Then, with the rule's next alert, a second
one says that it is over, and how many were kept back.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from samovar.changelog.formats.record import STORM, newer
from samovar.common.wire import from_wire, stored, to_wire
from samovar.patterns.engine.matcher import MatchHeader
from samovar.patterns.explain.phrases import counted, duration_words
from samovar.state.store import Change, Readable
from samovar.tasks.model.plan import Limits
from samovar.tasks.model.results import Counts
from samovar.tasks.rules.alert_filter import Alarm, Alert

FORMAT = 1
EVERY = "*"  # the limit of rules that have none of their own
STORM_END = bytes([STORM[0] + 1])


@stored("window_ms last_ms earlier all since_ms kept_back quiet")
@dataclass(kw_only=True)
class AlertWindow:
    """The alerts of one rule, `earlier` those before `last_ms` in the window; a storm stands since `since_ms`."""

    window_ms: int
    last_ms: int
    earlier: int = 0
    all: int = 0
    since_ms: int | None = None
    kept_back: int = 0
    quiet: bool = True  # nothing was kept back in this window


class AlertRateLimiter:
    """The source of truth for how many alerts each rule raised lately, between two commits."""

    def __init__(self, limits: Limits, store: Readable) -> None:
        self.limits, self.is_idle = limits, not limits
        self.counts: dict[str, AlertWindow] = {}
        self.throttled: Counter[str] = Counter()  # since these rules began here
        self._changed: set[str] = set()
        for row, value in store.range(STORM, STORM_END) if limits else ():
            if row != STORM:
                self.counts[row[1:].decode()] = from_wire(AlertWindow, _fields(value))

    @property
    def standing(self) -> dict[str, int]:
        """Rules that are in a storm, and how many of their alerts were kept back."""
        return {rule: count.kept_back for rule, count in self.counts.items() if count.since_ms is not None}

    def left(self, alerts: Sequence[Alert], counts: Counts) -> list[Alert]:
        """Those that are raised, and alarms about the others."""
        found: list[Alert] = []
        before = self.throttled.total()
        for alert in alerts:
            found += self._judged(alert) if isinstance(alert, MatchHeader) else [alert]
        counts.throttled += self.throttled.total() - before
        return found

    def _judged(self, alert: MatchHeader) -> list[Alert]:
        rule, at, limit = alert.rule, alert.at, self.limits.get(alert.rule) or self.limits.get(EVERY)
        if limit is None:
            return [alert]
        most, per_ms = limit
        window_ms = at - at % per_ms
        count = self.counts.setdefault(rule, AlertWindow(window_ms=window_ms, last_ms=at))
        if window_ms < count.window_ms:
            return [alert]
        self._changed.add(rule)
        found: list[Alert] = []
        if window_ms > count.window_ms:  # the storm is over where the last one was quiet, or one passed with no alert
            if count.since_ms is not None and (count.quiet or window_ms > count.window_ms + per_ms):
                text = f"the storm of {rule} is over: {count.kept_back:,} alerts were kept back"
                found.append(alarm(alert, "storm-over", count.since_ms, text, limit, count.kept_back))
                count.since_ms, count.kept_back = None, 0
            count.window_ms, count.last_ms, count.earlier, count.all, count.quiet = window_ms, window_ms, 0, 0, True
        if at > count.last_ms:
            count.last_ms, count.earlier = at, count.all
        count.all += 1
        if count.earlier < most:
            return [*found, alert]
        self.throttled[rule] += 1
        count.kept_back, count.quiet = count.kept_back + 1, False
        if count.since_ms is None:
            count.since_ms = window_ms
            passed = f"{rule} passed {counted(most, 'alert')} in {duration_words(per_ms)}"
            text = f"{passed}: the others are kept back and counted"
            found.append(alarm(alert, "storm", count.since_ms, text, limit, 0))
        return found

    def changes(self) -> list[Change]:
        """Rows that changed since the last commit."""
        changed, self._changed = sorted(self._changed), set()
        return [(STORM + rule.encode(), _pack_facts(to_wire(self.counts[rule]))) for rule in changed]


def alarm(alert: MatchHeader, kind: str, since_ms: int, text: str, limit: tuple[int, int], kept_back: int) -> Alarm:
    rule = alert.rule
    id_ = hashlib.sha256(f"{kind} {rule} {since_ms} {alert.id}".encode()).hexdigest()[:32]
    record = {
        "rule": rule,
        "version": alert.version,
        "id": id_,
        "key": {},
        "start": since_ms,
        "end": alert.at,
        "at": alert.at,
        "steps": {},
        "emit": {"alerts": limit[0], "per_ms": limit[1], "kept_back": kept_back},
        "message": text,
        "alarm": kind,
    }
    return Alarm(id_, (rule.encode(), json.dumps(record).encode()))


def limits_row(limits: Limits) -> list[Change]:
    """The row that says which limits are in force; none where there never were any."""
    return [(STORM, _pack_facts({"limits": limits_facts(limits)}))]


def limits_facts(limits: Limits) -> dict[str, list[int]]:
    return {rule: list(limit) for rule, limit in limits.items()}


def limits_of(facts: Mapping[str, Any]) -> Limits:
    """As the journal and the row have it."""
    return {rule: (limit[0], limit[1]) for rule, limit in facts.items()}


def limits_in(store: Readable) -> Limits:
    data = store.get(STORM)
    return {} if data is None else limits_of(_fields(data)["limits"])


def _pack_facts(facts: Mapping[str, Any]) -> bytes:
    return json.dumps({"v": FORMAT, **facts}, separators=(",", ":")).encode()


def _fields(data: bytes) -> dict[str, Any]:
    raw: dict[str, Any] = json.loads(data)
    version = raw.pop("v")
    if version > FORMAT:
        raise newer("the count of a rule's alerts", version, FORMAT)
    return raw
