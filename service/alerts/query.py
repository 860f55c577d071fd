"""Questions to the index of alerts: searches in pages, one alert, counts over time, values that rules emit."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from samovar.common.errors import Refused
from samovar.service.alerts.index import Alert, AlertsIndex
from samovar.service.alerts.labels import LABELS, precision

COLUMNS = "alert.partition, alert.offset, alert.logged, alert.body"
LABELLED = "LEFT JOIN label ON label.alert = alert.id"
ALERTS = f"SELECT {COLUMNS}, label.label FROM alert {LABELLED}"  # noqa: S608 - our own words
COUNTED = 10_000  # of a search's finds; beyond it the total is said not to be exact
VALUES_MOST = 20_000  # alerts that a distribution looks at, the newest
TEXTS_SHOWN = 20


@dataclass(frozen=True, kw_only=True)
class Search:
    """What to search for. `after` is where the page before ended; times are event times, `to` is left out."""

    rules: Sequence[str] = ()
    key: str | None = None
    label: str | None = None
    from_ms: int | None = None
    to_ms: int | None = None
    limit: int = 50
    after: str | None = None
    versions: Sequence[str] | None = None  # of rules; None: all
    but_versions: Sequence[str] = ()


@dataclass(frozen=True)
class AlertResults:
    alerts: Sequence[tuple[Alert, str]]  # with their labels
    next: str | None
    total: int
    is_exact: bool


def search(index: AlertsIndex, wanted: Search) -> AlertResults:
    """Newest first, by (at, id)."""
    where, values = _where(wanted)
    join = "" if wanted.label is None else LABELLED
    counting = f"SELECT count(*) FROM (SELECT 1 FROM alert {join} WHERE {where} LIMIT {COUNTED + 1})"  # noqa: S608 - our own words
    total = index.ask(counting, values)[0][0]
    if wanted.after is not None:
        where, values = f"{where} AND (alert.at, alert.id) < (?, ?)", [*values, *_place(wanted.after)]
    rows = index.ask(
        f"{ALERTS} WHERE {where} ORDER BY alert.at DESC, alert.id DESC LIMIT ?", [*values, wanted.limit + 1]
    )
    found = [(_alert(row), row[4] or "open") for row in rows[: wanted.limit]]
    last = found[-1][0] if len(rows) > wanted.limit else None
    checkpoint = None if last is None else f"{last.match['at']}.{last.id}"
    return AlertResults(found, checkpoint, min(total, COUNTED), total <= COUNTED)


def _where(wanted: Search) -> tuple[str, list[Any]]:
    parts: list[str] = ["1"]
    values: list[Any] = []
    if wanted.rules:
        parts.append(f"alert.rule IN ({', '.join('?' * len(wanted.rules))})")
        values += wanted.rules
    compared = {"alert.key = ?": wanted.key, "alert.at >= ?": wanted.from_ms, "alert.at < ?": wanted.to_ms}
    compared["coalesce(label.label, 'open') = ?"] = wanted.label
    for condition, value in compared.items():
        if value is not None:
            parts.append(condition)
            values.append(value)
    for word, versions in (("IN", wanted.versions), ("NOT IN", wanted.but_versions or None)):
        if versions is not None:
            parts.append(f"json_extract(alert.body, '$.version') {word} (SELECT value FROM json_each(?))")  # noqa: S608 - our own words
            values.append(json.dumps(list(versions)))
    return " AND ".join(parts), values


def _place(text: str) -> tuple[int, str]:
    at, _, id = text.partition(".")
    try:
        number = int(at)
    except ValueError:
        number = 1 << 80
    if not id or abs(number) >= 1 << 62:
        raise Refused("bad-position", "`after` is not a place in a search", "Give the `next` of the page before it.")
    return number, id


def _alert(row: Sequence[Any]) -> Alert:
    return Alert(partition=row[0], offset=row[1], logged=row[2], match=json.loads(row[3]), body=row[3])


# ---------------------------------------------------------------- one, and those of a key


def one(index: AlertsIndex, id: str) -> tuple[Alert, str]:
    rows = index.ask(f"{ALERTS} WHERE alert.id = ?", [id])
    if not rows:
        hint = f"Only the newest {index.most:,} are searched; `samovar read CONFIG alerts` has what the topic keeps."
        raise Refused("unknown-alert", "there is no such alert", hint)
    return _alert(rows[0]), rows[0][4] or "open"


def label_of(index: AlertsIndex, id: str) -> dict[str, Any] | None:
    rows = index.ask("SELECT label, by, at, note FROM label WHERE alert = ?", [id])
    return None if not rows else dict(zip(("label", "by", "at", "note"), rows[0], strict=True))


def since(index: AlertsIndex, after: Mapping[int, int], until: Mapping[int, int]) -> list[Alert]:
    """Alerts of each partition from one position up to another, in the order of their log times."""
    found: list[Alert] = []
    for partition, end in until.items():
        rows = index.ask(
            f"SELECT {COLUMNS} FROM alert WHERE partition = ? AND offset >= ? AND offset < ?",  # noqa: S608 - our own words
            [partition, after.get(partition, end), end],
        )
        found += map(_alert, rows)
    return sorted(found, key=lambda alert: (alert.logged, alert.partition, alert.offset))


def versions_of(index: AlertsIndex, rule: str) -> list[str]:
    """The versions of a rule that alerts here are of."""
    rows = index.ask("SELECT DISTINCT json_extract(body, '$.version') FROM alert WHERE rule = ?", [rule])
    return [str(version) for (version,) in rows]


# ---------------------------------------------------------------- in numbers


def precisions(index: AlertsIndex) -> dict[str, dict[str, Any]]:
    """By rule: alerts in the index, how they are labelled, and how precise the rule is."""
    found: dict[str, dict[str, Any]] = {}
    for rule, count in index.ask("SELECT rule, count(*) FROM alert GROUP BY rule"):
        found[rule] = {**dict.fromkeys(LABELS, 0), "alerts": count}
    for rule, label, count in index.ask("SELECT rule, label, count(*) FROM label GROUP BY rule, label"):
        found.setdefault(rule, {**dict.fromkeys(LABELS, 0), "alerts": 0})[label] = count
    for own in found.values():
        own["open"] = max(own["alerts"] - own["confirmed"] - own["false_alarm"], 0)
        own["precision"] = precision(own)
    return found


def counts(index: AlertsIndex, from_ms: int, to_ms: int, buckets: int, rules: Sequence[str]) -> dict[str, Any]:
    """How many alerts were raised in each part of a time, by log time."""
    width = max(math.ceil((to_ms - from_ms) / buckets), 1)
    picked = f" AND rule IN ({', '.join('?' * len(rules))})" if rules else ""
    rows = index.ask(
        f"SELECT rule, (logged - ?) / ?, count(*) FROM alert WHERE logged >= ? AND logged < ?{picked} GROUP BY 1, 2",  # noqa: S608 - our own words
        [from_ms, width, from_ms, to_ms, *rules],
    )
    by_rule: dict[str, list[int]] = {}
    total = [0] * buckets
    for rule, bucket, count in rows:
        by_rule.setdefault(rule, [0] * buckets)[bucket] += count
        total[bucket] += count
    return {"from": from_ms, "to": to_ms, "bucket_ms": width, "total": total, "rules": by_rule}


def values(
    index: AlertsIndex,
    rule: str,
    field: str,
    buckets: int,
    from_ms: int,
    to_ms: int,
    shown: Callable[[Any], Any] = lambda value: value,
) -> dict[str, Any]:
    """How the values of a field that a rule emits are spread; `duration_ms` is from the first event to the last. Each
    value counts as it is `shown`.
    """
    rows = index.ask(
        "SELECT start, finish, body FROM alert WHERE rule = ? AND at >= ? AND at < ? ORDER BY at DESC LIMIT ?",
        [rule, from_ms, to_ms, VALUES_MOST],
    )
    if field == "duration_ms":
        found = [end - start for start, end, _ in rows]
    else:
        found = [shown(json.loads(body).get("emit", {}).get(field)) for _, _, body in rows]
    numbers = sorted(float(each) for each in found if isinstance(each, int | float) and not isinstance(each, bool))
    texts = Counter(each for each in found if isinstance(each, str))
    told: dict[str, Any] = {"rule": rule, "field": field, "count": len(numbers) + sum(texts.values())}
    told["texts"] = [{"value": text, "count": count} for text, count in texts.most_common(TEXTS_SHOWN)]
    if not numbers:
        return told | {"min": None, "max": None, "mean": None, "p50": None, "p95": None, "buckets": []}
    low, high = numbers[0], numbers[-1]
    width = (high - low) / buckets or 1.0
    counted = Counter(min(int((each - low) / width), buckets - 1) for each in numbers)
    parts = range(buckets if high > low else 1)
    return told | {
        "min": low,
        "max": high,
        "mean": sum(numbers) / len(numbers),
        "p50": numbers[len(numbers) // 2],
        "p95": numbers[min(int(len(numbers) * 0.95), len(numbers) - 1)],
        "buckets": [{"from": low + n * width, "to": low + (n + 1) * width, "count": counted[n]} for n in parts],
    }
