"""What `samovar state` shows: each command gives its data for programs and its lines for people."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, islice
from pathlib import Path
from typing import Any

from samovar.changelog.cursors import Cursor
from samovar.changelog.errors import Refused
from samovar.changelog.log import Records, TopicPartition
from samovar.changelog.record import POSITION, ROW, Position, key_prefix, row_parts, unpack_position
from samovar.patterns.follow import iso_time
from samovar.patterns.matcher import decode_key
from samovar.patterns.nearest import did_you_mean
from samovar.service.reading import unpacked
from samovar.service.state_rows import UnreadableError, head_of
from samovar.service.state_view import FOREVER, KeyState, described, key_text, keys_meant, look_up, text_of
from samovar.service.stores import ROWS_END, Site, digest_of, is_store, plan_for, position_of, reading, watermark_of
from samovar.service.verifying import canonical, differences, rule_name
from samovar.state.store import Readable
from samovar.tasks.plan import Plan


@dataclass(frozen=True)
class Found:
    """What a command found: `data` is JSON, empty where there was nothing."""

    data: Any
    lines: Sequence[str]


def refuse_unknown_rule(plan: Plan, rule: str | None) -> None:
    known = [each.rule.id for each in plan.program.rules]
    if rule is not None and rule not in known:
        hint = did_you_mean(rule, known) or f"The rules are: {', '.join(known)}."
        raise Refused("unknown-rule", f"there is no rule `{rule}`", hint)


def _refuse_no_key(plan: Plan, text: str) -> None:
    names = sorted({", ".join(key.name for key in each.rule.form.by) for each in plan.program.rules})
    raise Refused("bad-key", f"`{text}` fits no rule's key", f"Rules are by {'; '.join(names)}.")


# ---------------------------------------------------------------- get


def get(site: Site, text: str, rule: str | None) -> Found:
    """All that is held of a key, over all partitions on this machine."""
    found: list[dict[str, Any]] = []
    lines: list[str] = []
    refuse_unknown_rule(site.plan, rule)
    if not keys_meant(site.plan, text, rule):
        _refuse_no_key(site.plan, text)
    for partition in site.present():
        with reading(site.store(partition)) as store:
            position = position_of(store)
            plan = plan_for(site, partition, position)
            for key in keys_meant(plan, text, rule):
                state = look_up(plan, store, key, rule)
                if not state.is_empty:
                    state = replace(state, rules=[_with_events(site, position, rule) for rule in state.rules])
                    found.append(_placed(state, partition, position))
                    lines += [_heading(state, partition, position), *text_of(state)]
    return Found(found, lines or [f"nothing is held of {text}"])


def _placed(state: KeyState, partition: int, position: Position | None) -> dict[str, Any]:
    moment = None if position is None else position.watermark
    return {"partition": partition, "watermark": moment, **state.data()}


def _with_events(site: Site, position: Position | None, rule: Mapping[str, Any]) -> Mapping[str, Any]:
    """A rule's state with the events that its partial matches have bound, as the input has them."""
    if position is None or not rule.get("partials"):
        return rule
    partials = [
        {**partial, "bound": [_event(site, position, each) for each in partial.get("bound", ())]}
        for partial in rule["partials"]
    ]
    return {**rule, "partials": partials}


def _event(site: Site, position: Position, bound: Mapping[str, Any]) -> dict[str, Any]:
    stream = position.streams[bound["stream"]]
    at = TopicPartition(position.inputs[stream].topic, bound["partition"])
    begin, end = site.log.bounds([at])[at]
    found = {**bound, "stream": stream}
    if not begin <= bound["offset"] < end:
        return found
    cursor = Cursor(site.log, at, bound["offset"])
    try:
        records = cursor.take(bound["offset"] + 1)
    finally:
        cursor.close()
    value = None if records is None else records.value(0)
    return found if value is None else {**found, "event": unpacked(value.decode("utf-8", "replace"))}


def _heading(state: KeyState, partition: int, position: Position | None) -> str:
    return f"{key_text(state.key)}  (partition {partition}, {_event_time(position)})"


def _event_time(position: Position | None) -> str:
    known = None if position is None else position.watermark
    return "no event time yet" if known is None else f"event time {iso_time(known)}"


# ---------------------------------------------------------------- scan


def scan(site: Site, rule: str | None, partitions: Sequence[int], limit: int) -> Found:
    """Keys that have state, in the order of their bytes."""
    refuse_unknown_rule(site.plan, rule)
    found: list[dict[str, Any]] = []
    for partition in site.present(partitions):
        with reading(site.store(partition)) as store:
            plan = plan_for(site, partition, position_of(store))
            keys = (each for each in _scanned(plan, store, partition) if rule is None or rule in each["rules"])
            found += islice(keys, limit + 1 - len(found))
    more = ["(more: raise --limit)"] if len(found) > limit else []
    found = found[:limit]
    return Found(found, [_scan_line(each) for each in found] + more or ["no key has state"])


def _scanned(plan: Plan, store: Readable, partition: int) -> Iterator[dict[str, Any]]:
    for key, group in groupby(store.range(ROW, ROWS_END), key=lambda pair: row_parts(pair[0])[0]):
        rows = list(group)
        names = dict.fromkeys(row_parts(row)[1] for row, _ in rows)
        size = sum(len(row) + len(value) for row, value in rows)
        listed = list(dict.fromkeys(rule_name(plan, name) for name in names))
        entry = {
            "partition": partition,
            "key": list(decode_key(key)),
            "rules": listed,
            "rows": len(rows),
            "bytes": size,
        }
        yield entry | _due(rows)


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
    return f"{entry['partition']}  {key}  {rules}  {entry['rows']} rows, {entry['bytes']:,} bytes{due}"


# ---------------------------------------------------------------- history


def history(site: Site, text: str, rule: str | None, partitions: Sequence[int]) -> Found:
    """Every change of a key that the changelog has, commit by commit."""
    refuse_unknown_rule(site.plan, rule)
    keys = keys_meant(site.plan, text, rule)
    if not keys:
        _refuse_no_key(site.plan, text)
    data: list[dict[str, Any]] = []
    lines: list[str] = []
    for partition in site.chosen(partitions):
        changelog = site.changelog(partition)
        for key in keys:
            for change in _changes(site, changelog.at, changelog.bounds, key, rule):
                data.append(change.data())
                lines += change.lines()
        if changelog.bounds.begin > 0 and data:
            lines.append(f"(the changelog of partition {partition} begins at offset {changelog.bounds.begin:,})")
    return Found(data, lines or [f"the changelog has no change of {text}"])


@dataclass(frozen=True)
class Changed:
    """A key after one commit."""

    at: TopicPartition
    offset: int
    time_ms: int
    state: KeyState

    def data(self) -> dict[str, Any]:
        place = {"partition": self.at.partition, "offset": self.offset, "time": self.time_ms}
        return {**place, "gone": self.state.is_empty, **self.state.data()}

    def lines(self) -> list[str]:
        head = f"{self.at.partition}/{self.offset}  {iso_time(self.time_ms)}  {key_text(self.state.key)}"
        return [f"{head}: gone"] if self.state.is_empty else [head, *text_of(self.state)]


def _changes(
    site: Site, at: TopicPartition, bounds: tuple[int, int], key: bytes, rule: str | None
) -> Iterator[Changed]:
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
            yield Changed(at, *touched, described(plan, key, rows, rule))
            touched = None
    if touched:
        yield Changed(at, *touched, described(plan, key, rows, rule))


def _records(site: Site, at: TopicPartition, bounds: tuple[int, int]) -> Iterator[tuple[int, int, bytes, bytes | None]]:
    cursor = Cursor(site.log, at, bounds[0])
    try:
        while (records := cursor.take(bounds[1])) is not None:
            yield from _rows(records)
    finally:
        cursor.close()


def _rows(records: Records) -> Iterator[tuple[int, int, bytes, bytes | None]]:
    places = zip(records.offsets.tolist(), records.times.tolist(), records.pairs(), strict=True)
    return ((offset, time_ms, key, value) for offset, time_ms, (key, value) in places if key is not None)


# ---------------------------------------------------------------- digest, diff


def digests(site: Site, partitions: Sequence[int]) -> Found:
    """The digest of each partition here, at the store's own event time."""
    found: list[dict[str, Any]] = []
    lines: list[str] = []
    for partition in site.present(partitions):
        with reading(site.store(partition)) as store:
            position = position_of(store)
            digest = digest_of(plan_for(site, partition, position), store)
        inputs = {} if position is None else {name: each.next for name, each in position.inputs.items()}
        moment = None if position is None else position.watermark
        found.append({"partition": partition, "digest": digest, "watermark": moment, "inputs": inputs})
        places = ", ".join(f"{name} up to {offset:,}" for name, offset in inputs.items())
        lines.append(f"{partition}  {digest}  {_event_time(position)}{', ' + places if places else ''}")
    return Found(found, lines)


def diff(site: Site, left: Path, right: Path, limit: int) -> Found:
    """Keys whose state is not the same in two folders, each at its own event time."""
    sides = [replace(site, state=left), replace(site, state=right)]
    found: list[dict[str, Any]] = []
    for partition in sorted({each for side in sides for each in side.present()}):
        found += _differing(sides[0], sides[1], partition)
    lines = [f"{each['partition']}  {key_text(each['key'])}  {each['rule']}  {each['how']}" for each in found[:limit]]
    more = [f"({len(found) - limit:,} more)"] if len(found) > limit else []
    return Found(found, [*lines, *more] or ["equal"])


def _differing(left: Site, right: Site, partition: int) -> Iterator[dict[str, Any]]:
    plans, rows = [], []
    for side in (left, right):
        plan, states = _states(side, partition)
        plans.append(plan)
        rows.append(states)
    for row, one, other in differences(*rows):
        key, name, _, _ = row_parts(ROW + row)
        how = "only in the first" if other is None else "only in the second" if one is None else "differs"
        rule = rule_name(plans[0], name)
        yield {"partition": partition, "key": list(decode_key(key)), "rule": rule, "how": how}


def _states(side: Site, partition: int) -> tuple[Plan, list[tuple[bytes, bytes]]]:
    if not is_store(side.store(partition)):
        return side.plan, []
    with reading(side.store(partition)) as store:
        position = position_of(store)
        plan = plan_for(side, partition, position)
        return plan, canonical(plan, store, watermark_of(position))
