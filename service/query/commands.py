"""What `samovar state` shows: each command gives its data for programs and its lines for people."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, islice
from pathlib import Path
from typing import Any

from samovar.changelog.cursors import PartitionCursor
from samovar.changelog.formats.record import POSITION, ROW, USER, Position, key_prefix, row_parts, unpack_position
from samovar.changelog.log import Records, TopicPartition
from samovar.common.errors import Refused
from samovar.common.suggest import did_you_mean
from samovar.patterns.engine.matcher import decode_key
from samovar.patterns.explain.key_trace import iso_time
from samovar.patterns.syntax.tree import Scalar
from samovar.service.query.events import Events, Place
from samovar.service.query.state.rows import UnreadableError, head_of
from samovar.service.query.state.view import FOREVER, KeyState, described, find_key, key_text, resolve_key, text_of
from samovar.service.query.task_state import held_of, history_of, named, scanned
from samovar.service.query.verify import canonical, differences, rule_name
from samovar.service.topology.stores import (
    ROWS_END,
    StateLocation,
    digest_of,
    is_store,
    plan_for,
    position_of,
    reading,
    watermark_of,
)
from samovar.state.prefixed import after
from samovar.state.store import Readable
from samovar.tasks.model.plan import Plan
from samovar.tasks.runtime.stream_task import name_of

EVENTS_READ = 5  # of what a rule has bound of a key, the newest; of the others their places are told


@dataclass(frozen=True)
class QueryResult:
    """What a command found: `data` is JSON, empty where there was nothing."""

    data: Any
    lines: Sequence[str]


def refuse_unknown_rule(site: StateLocation, rule: str | None) -> None:
    known = [each.rule.id for plan in site.plans for each in plan.program.rules]
    if rule is not None and rule not in known:
        hint = did_you_mean(rule, known) or f"The rules are: {', '.join(known)}."
        raise Refused("unknown-rule", f"there is no rule `{rule}`", hint)


def refuse_no_key(
    site: StateLocation, text: str, rule: str | None, stage: str | None, asked: str | None = None
) -> None:
    """Refuse a text that is not a key of any rule, in any stage. It is quoted as it was `asked` for."""
    plans = [each.plan for each in site.stages(stage)]
    if any(plan.task is not None or resolve_key(plan, text, rule) for plan in plans):
        return
    rules = (each.rule for plan in plans for each in plan.program.rules)
    names = sorted({", ".join(key.name for key in each.form.by) for each in rules} - {""})
    quoted = text if asked is None else asked
    raise Refused("bad-key", f"`{quoted}` fits no rule's key", f"Rules are by {'; '.join(names)}.")


# ---------------------------------------------------------------- get


def get(site: StateLocation, text: str, rule: str | None, stage: str | None = None) -> QueryResult:
    """All that is held of a key, over all stages and partitions on this machine."""
    found: list[dict[str, Any]] = []
    lines: list[str] = []
    refuse_unknown_rule(site, rule)
    refuse_no_key(site, text, rule, stage)
    events = Events(site.settings, site.log)
    for here, partition in site.found(stage=stage):
        with reading(here.store(partition)) as store:
            position = position_of(store)
            plan = plan_for(here, partition, position)
            if plan.task is not None and rule is None and not (held := held_of(plan, store, text)).is_empty:
                found.append({**here.placed(partition), "watermark": _moment(position), **held.data()})
                lines += [_heading((text,), here, partition, position), *held.lines()]
            for key in resolve_key(plan, text, rule):
                state = find_key(plan, store, key, rule)
                if not state.is_empty:
                    state = replace(state, rules=with_events(events, here, position, state.rules))
                    found.append({**here.placed(partition), "watermark": _moment(position), **state.data()})
                    lines += [_heading(state.key, here, partition, position), *text_of(state)]
    return QueryResult(found, lines or [f"nothing is held of {text}"])


def _moment(position: Position | None) -> int | None:
    return None if position is None else position.watermark


def with_events(
    events: Events, site: StateLocation, position: Position | None, rules: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """States of rules with the newest events that their partial matches have bound, as the input has them."""
    if position is None:
        return [dict(rule) for rule in rules]
    specs = {spec.stream: spec.origin for spec in (*site.plan.inputs, *site.plan.others)}

    def place(bound: Mapping[str, Any]) -> Place:
        stream = position.streams[bound["stream"]]
        return specs.get(stream) or position.inputs[stream].topic, bound["partition"], bound["offset"]

    found = events.at(place(each) for rule in rules for each in _newest_bound(rule))

    def shown(bound: Mapping[str, Any]) -> dict[str, Any]:
        told = {**bound, "stream": position.streams[bound["stream"]]}
        event = found.get(place(bound))
        return told if event is None or event.value is None else {**told, "event": event.event}

    return [_with_bound(rule, shown) for rule in rules]


def _newest_bound(rule: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    bound = [each for partial in rule.get("partials", ()) for each in partial.get("bound", ())]
    return sorted(bound, key=lambda each: int(each["time"]), reverse=True)[:EVENTS_READ]


def _with_bound(rule: Mapping[str, Any], shown: Callable[[Mapping[str, Any]], dict[str, Any]]) -> dict[str, Any]:
    if not rule.get("partials"):
        return dict(rule)
    partials = [{**each, "bound": [shown(one) for one in each.get("bound", ())]} for each in rule["partials"]]
    return {**rule, "partials": partials}


def _heading(key: Sequence[Scalar], site: StateLocation, partition: int, position: Position | None) -> str:
    return f"{key_text(key)}  ({name_of(site.stage, partition)}, {_event_time(position)})"


def _event_time(position: Position | None) -> str:
    known = None if position is None else position.watermark
    return "no event time yet" if known is None else f"event time {iso_time(known)}"


# ---------------------------------------------------------------- scan


def scan(
    site: StateLocation, rule: str | None, partitions: Sequence[int], limit: int, stage: str | None = None
) -> QueryResult:
    """Keys that have state, in the order of their bytes."""
    refuse_unknown_rule(site, rule)
    found: list[dict[str, Any]] = []
    for here, partition in site.found(partitions, stage):
        with reading(here.store(partition)) as store:
            plan = plan_for(here, partition, position_of(store))
            states = _scanned(plan, store) if plan.task is None else scanned(store)
            placed = ({**here.placed(partition), **each} for each in states)
            keys = (each for each in placed if rule is None or rule in each["rules"])
            found += islice(keys, limit + 1 - len(found))
    more = ["(more: raise --limit)"] if len(found) > limit else []
    found = found[:limit]
    return QueryResult(found, [_scan_line(each) for each in found] + more or ["no key has state"])


def _scanned(plan: Plan, store: Readable) -> Iterator[dict[str, Any]]:
    for key, group in groupby(store.range(ROW, ROWS_END), key=lambda pair: row_parts(pair[0])[0]):
        rows = list(group)
        names = dict.fromkeys(row_parts(row)[1] for row, _ in rows)
        size = sum(len(row) + len(value) for row, value in rows)
        listed = list(dict.fromkeys(rule_name(plan, name) for name in names))
        yield {"key": list(decode_key(key)), "rules": listed, "rows": len(rows), "bytes": size} | _due(rows)


def _due(rows: Sequence[tuple[bytes, bytes]]) -> dict[str, int]:
    by_store: dict[str, dict[bytes, bytes]] = defaultdict(dict)
    for row, value in rows:
        by_store[row_parts(row)[1]][row] = value
    times = []
    for own in by_store.values():
        try:
            due = head_of(own).due_ms
        except UnreadableError:
            continue
        if due is not None and abs(due) < FOREVER:
            times.append(due)
    return {"due": min(times)} if times else {}


def _scan_line(entry: Mapping[str, Any]) -> str:
    due = f"  due {iso_time(entry['due'])}" if "due" in entry else ""
    key, rules = key_text(entry["key"]), ", ".join(entry["rules"])
    return f"{_place(entry)}  {key}  {rules}  {entry['rows']} rows, {entry['bytes']:,} bytes{due}"


def _place(entry: Mapping[str, Any]) -> str:
    return f"{entry['stage']}/{entry['partition']}" if "stage" in entry else str(entry["partition"])


# ---------------------------------------------------------------- history


def history(
    site: StateLocation, text: str, rule: str | None, partitions: Sequence[int], stage: str | None = None
) -> QueryResult:
    """Every change of a key that the changelogs have, commit by commit."""
    refuse_unknown_rule(site, rule)
    refuse_no_key(site, text, rule, stage)
    data: list[dict[str, Any]] = []
    lines: list[str] = []
    for here, partition in [(each, one) for each in site.stages(stage) for one in each.chosen(partitions)]:
        changelog, before = here.changelog(partition), len(data)
        for key in resolve_key(here.plan, text, rule):
            for change in _changes(here, changelog.at, changelog.bounds, key, rule):
                data.append(change.data())
                lines += change.lines()
        if here.plan.task is not None and rule is None:
            records = _records(here, changelog.at, changelog.bounds)
            for offset, time_ms, held in history_of(here.plan, records, text):
                data.append({**here.placed(partition), "offset": offset, "time": time_ms, **held.data()})
                head = f"{here.short(partition)}/{offset}  {iso_time(time_ms)}  {text}"
                lines += [f"{head}: gone"] if held.is_empty else [head, *held.lines()]
        if changelog.bounds.begin > 0 and len(data) > before:
            name = name_of(here.stage, partition)
            lines.append(f"(the changelog of {name} begins at offset {changelog.bounds.begin:,})")
    return QueryResult(data, lines or [f"the changelog has no change of {text}"])


@dataclass(frozen=True)
class KeyChange:
    """A key after one commit."""

    site: StateLocation
    at: TopicPartition
    offset: int
    time_ms: int
    state: KeyState

    def data(self) -> dict[str, Any]:
        place = {**self.site.placed(self.at.partition), "offset": self.offset, "time": self.time_ms}
        return {**place, "gone": self.state.is_empty, **self.state.data()}

    def lines(self) -> list[str]:
        place = self.site.short(self.at.partition)
        head = f"{place}/{self.offset}  {iso_time(self.time_ms)}  {key_text(self.state.key)}"
        return [f"{head}: gone"] if self.state.is_empty else [head, *text_of(self.state)]


def _changes(
    site: StateLocation, at: TopicPartition, bounds: tuple[int, int], key: bytes, rule: str | None
) -> Iterator[KeyChange]:
    prefix = key_prefix(key)
    rows: dict[bytes, bytes] = {}
    plan, touched, rules = site.plan, None, dict(site.plan.versions)
    for offset, time_ms, row, value in _records(site, at, bounds):
        if row.startswith(prefix):
            touched = (offset, time_ms)
            if value is None:
                rows.pop(row, None)
            else:
                rows[row] = value
        elif row == POSITION and touched:
            position = None if value is None else unpack_position(value)
            if position is not None and position.rules != rules:
                plan, rules = plan_for(site, at.partition, position), dict(position.rules)
            yield KeyChange(site, at, *touched, described(plan, key, rows, rule))
            touched = None
    if touched:
        yield KeyChange(site, at, *touched, described(plan, key, rows, rule))


def _records(
    site: StateLocation, at: TopicPartition, bounds: tuple[int, int]
) -> Iterator[tuple[int, int, bytes, bytes | None]]:
    cursor = PartitionCursor(site.log, at, bounds[0])
    try:
        while (records := cursor.take(bounds[1])) is not None:
            yield from _rows(records)
    finally:
        cursor.close()


def _rows(records: Records) -> Iterator[tuple[int, int, bytes, bytes | None]]:
    places = zip(records.offsets.tolist(), records.times.tolist(), records.pairs(), strict=True)
    return ((offset, time_ms, key, value) for offset, time_ms, (key, value) in places if key is not None)


# ---------------------------------------------------------------- digest, diff


def digests(site: StateLocation, partitions: Sequence[int], stage: str | None = None) -> QueryResult:
    """The digest of each task's state here, at the store's own event time."""
    found: list[dict[str, Any]] = []
    lines: list[str] = []
    for here, partition in site.found(partitions, stage):
        with reading(here.store(partition)) as store:
            position = position_of(store)
            digest = digest_of(plan_for(here, partition, position), store)
        inputs = {} if position is None else {name: each.next for name, each in position.inputs.items()}
        told = {"digest": digest, "watermark": _moment(position), "inputs": inputs}
        found.append({**here.placed(partition), **told})
        places = ", ".join(f"{name} up to {offset:,}" for name, offset in inputs.items())
        lines.append(f"{here.short(partition)}  {digest}  {_event_time(position)}{', ' + places if places else ''}")
    return QueryResult(found, lines)


def diff(site: StateLocation, left: Path, right: Path, limit: int) -> QueryResult:
    """Keys whose state is not the same in two folders, each at its own event time."""
    sides = [replace(site, state=left), replace(site, state=right)]
    found: list[dict[str, Any]] = []
    for stage, partition in sorted({(each.stage, one) for side in sides for each, one in side.found()}):
        found += _differing(sides[0].at(stage), sides[1].at(stage), partition)
    lines = [f"{_place(each)}  {key_text(each['key'])}  {each['rule']}  {each['how']}" for each in found[:limit]]
    more = [f"({len(found) - limit:,} more)"] if len(found) > limit else []
    return QueryResult(found, [*lines, *more] or ["equal"])


def _differing(left: StateLocation, right: StateLocation, partition: int) -> Iterator[dict[str, Any]]:
    plans, rows = [], []
    for side in (left, right):
        plan, states = _states(side, partition)
        plans.append(plan)
        rows.append(states)
    for row, one, other in differences(*rows):
        how = "only in the first" if other is None else "only in the second" if one is None else "differs"
        if row[:1] == USER and left.plan.task is not None:
            rule, text = named(row)
            yield {**left.placed(partition), "key": [text], "rule": rule, "how": how}
            continue
        key, name, _, _ = row_parts(ROW + row)
        yield {**left.placed(partition), "key": list(decode_key(key)), "rule": rule_name(plans[0], name), "how": how}


def _states(side: StateLocation, partition: int) -> tuple[Plan, list[tuple[bytes, bytes]]]:
    if not is_store(side.store(partition)):
        return side.plan, []
    with reading(side.store(partition)) as store:
        position = position_of(store)
        plan = plan_for(side, partition, position)
        if plan.task is not None:
            return plan, list(store.range(USER, after(USER)))
        return plan, canonical(plan, store, watermark_of(position))
