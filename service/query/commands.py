"""What `samovar state` shows: each command gives its data for programs and its lines for people."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, groupby, islice
from operator import methodcaller
from pathlib import Path
from typing import Any

from samovar.changelog.cursors import PartitionCursor
from samovar.changelog.formats.record import POSITION, ROW, USER, Position, key_prefix, row_parts, unpack_position
from samovar.changelog.restore.restore import ChangelogPartition
from samovar.common.errors import Refused
from samovar.common.suggest import did_you_mean
from samovar.patterns.engine.matcher import decode_key
from samovar.patterns.explain.key_trace import iso_time
from samovar.service.query.events import Events, Place
from samovar.service.query.state.rows import UnreadableError, head_of
from samovar.service.query.state.view import (
    FOREVER,
    KeyState,
    TaskKeyState,
    by_store,
    event_time_text,
    find_key,
    find_task_key,
    key_text,
    named,
    position_data,
    resolve_key,
    rule_name,
    task_rows_of,
)
from samovar.service.query.verify import canonical, differences
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
from samovar.state.memory import MemoryStore
from samovar.state.prefixed import after
from samovar.state.secondary import SecondaryStore
from samovar.state.store import Readable
from samovar.tasks.model.plan import Plan
from samovar.tasks.runtime.stream_task import name_of
from samovar.tasks.user.inspect import rows_of_stores, timers_of

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


# ---------------------------------------------------------------- a key


def get(site: StateLocation, text: str, rule: str | None, stage: str | None = None) -> QueryResult:
    """All that is held of a key, over all stages and partitions on this machine."""
    refuse_unknown_rule(site, rule)
    refuse_no_key(site, text, rule, stage)
    found: list[dict[str, Any]] = []
    lines: list[str] = []
    events = Events(settings=site.settings, log=site.log)
    for here, partition in site.found(stage=stage):
        with reading(here.store(partition)) as store:
            for position, state in states_of_key(events, here, partition, store, text, rule):
                watermark = None if position is None else position.watermark
                found.append({**here.placed(partition), "watermark": watermark, **state.data()})
                where = f"{name_of(here.stage, partition)}, {event_time_text(position)}"
                lines += [f"{key_text(state.key)}  ({where})", *state.lines()]
    return QueryResult(found, lines or [f"nothing is held of {text}"])


def states_of_key(
    events: Events, here: StateLocation, partition: int, store: SecondaryStore, text: str, rule: str | None
) -> Iterator[tuple[Position | None, KeyState | TaskKeyState]]:
    """What a store holds of the keys that a text may mean, with the position that it stands at."""
    position = position_of(store)
    plan = plan_for(here, partition, position)
    if plan.task is not None and rule is None and not (held := find_task_key(plan, store, text)).is_empty:
        yield position, held
    for key in resolve_key(plan, text, rule):
        state = find_key(plan, store, key, rule)
        if not state.is_empty:
            yield position, replace(state, rules=with_events(events, here, position, state.rules))


def with_events(
    events: Events, site: StateLocation, position: Position | None, rules: Sequence[Mapping[str, Any]]
) -> Sequence[Mapping[str, Any]]:
    """States of rules with the newest events that their partial matches have bound, as the input has them."""
    if position is None:
        return rules
    origins = {spec.stream: spec.origin for spec in (*site.plan.inputs, *site.plan.others)}

    def place(bound: Mapping[str, Any]) -> Place:
        stream = position.streams[bound["stream"]]
        return origins.get(stream) or position.inputs[stream].topic, bound["partition"], bound["offset"]

    newest: list[Mapping[str, Any]] = []
    for rule in rules:
        bound = [each for partial in rule.get("partials", ()) for each in partial.get("bound", ())]
        newest += sorted(bound, key=lambda each: int(each["time"]), reverse=True)[:EVENTS_READ]
    found = events.at(map(place, newest))

    def with_event(bound: Mapping[str, Any]) -> dict[str, Any]:
        event = found.get(place(bound))
        read = {} if event is None or event.value is None else {"event": event.event}
        return {**bound, "stream": position.streams[bound["stream"]], **read}

    told = []
    for rule in rules:
        partials = [{**each, "bound": [*map(with_event, each.get("bound", ()))]} for each in rule.get("partials", ())]
        told.append({**rule, "partials": partials} if partials else rule)
    return told


# ---------------------------------------------------------------- many keys


def scan(
    site: StateLocation, rule: str | None, partitions: Sequence[int], limit: int, stage: str | None = None
) -> QueryResult:
    """Keys that have state, in the order of their bytes."""
    refuse_unknown_rule(site, rule)
    found: list[dict[str, Any]] = []
    for here, partition in site.found(partitions, stage):
        with reading(here.store(partition)) as store:
            plan = plan_for(here, partition, position_of(store))
            placed = ({**here.placed(partition), **each} for each in keys_in(plan, store, with_due=True))
            keys = (each for each in placed if rule is None or rule in each["rules"])
            found += islice(keys, limit + 1 - len(found))
    lines = []
    for each in found[:limit]:
        due = f"  due {iso_time(each['due'])}" if "due" in each else ""
        key, rules = key_text(each["key"]), ", ".join(each["rules"])
        lines.append(f"{_place(each)}  {key}  {rules}  {each['rows']} rows, {each['bytes']:,} bytes{due}")
    more = ["(more: raise --limit)"] if len(found) > limit else []
    return QueryResult(found[:limit], lines + more or ["no key has state"])


def keys_in(plan: Plan, store: Readable, *, with_due: bool = False) -> Iterator[dict[str, Any]]:
    """The keys that a store holds something of, and the size of their rows; of a task, rows and timers one by one."""
    if plan.task is not None:
        for row in rows_of_stores(store):
            due = {} if row.expires is None else {"due": row.expires}
            yield {"key": [row.key], "rules": [row.store], "rows": 1, "bytes": row.size} | due
        for name, due_ms in timers_of(store).items():
            yield {"key": [name], "rules": ["(timer)"], "rows": 1, "bytes": len(name) + 11, "due": due_ms}
        return
    for key, group in groupby(store.range(ROW, ROWS_END), key=lambda pair: row_parts(pair[0])[0]):
        rows = list(group)
        names = dict.fromkeys(rule_name(plan, row_parts(row)[1]) for row, _ in rows)
        size = sum(len(row) + len(value) for row, value in rows)
        found = {"key": list(decode_key(key)), "rules": list(names), "rows": len(rows), "bytes": size}
        yield found | _due(rows) if with_due else found


def _due(rows: Sequence[tuple[bytes, bytes]]) -> dict[str, int]:
    times = []
    for own in by_store(rows).values():
        try:
            due = head_of(own).due_ms
        except UnreadableError:
            continue
        if due is not None and abs(due) < FOREVER:
            times.append(due)
    return {"due": min(times)} if times else {}


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
        changes = []
        for key in resolve_key(here.plan, text, rule):
            is_own: Callable[[bytes], bool] = methodcaller("startswith", key_prefix(key))
            changes.append(_changes(here, changelog, is_own, partial(find_key, key=key, rule=rule)))
        if here.plan.task is not None and rule is None:
            is_own = frozenset(task_rows_of(here.plan, text)).__contains__
            changes.append(_changes(here, changelog, is_own, partial(find_task_key, key=text)))
        for offset, time_ms, state in chain.from_iterable(changes):
            gone = {"gone": state.is_empty} if isinstance(state, KeyState) else {}
            data.append({**here.placed(partition), "offset": offset, "time": time_ms, **gone, **state.data()})
            head = f"{here.short(partition)}/{offset}  {iso_time(time_ms)}  {key_text(state.key)}"
            lines += [f"{head}: gone"] if state.is_empty else [head, *state.lines()]
        if changelog.bounds.begin > 0 and len(data) > before:
            name = name_of(here.stage, partition)
            lines.append(f"(the changelog of {name} begins at offset {changelog.bounds.begin:,})")
    return QueryResult(data, lines or [f"the changelog has no change of {text}"])


def _changes(
    site: StateLocation,
    changelog: ChangelogPartition,
    is_own: Callable[[bytes], bool],
    state_of: Callable[[Plan, MemoryStore], KeyState | TaskKeyState],
) -> Iterator[tuple[int, int, KeyState | TaskKeyState]]:
    """A key after each commit that changed its rows: offset, log time, and its state."""
    begin, end = changelog.bounds
    own, touched = MemoryStore(), None
    plan, rules = site.plan, dict(site.plan.versions)
    with closing(PartitionCursor(site.log, changelog.at, begin)) as cursor:
        while (records := cursor.next_records(end)) is not None:
            places = zip(records.offsets.tolist(), records.times.tolist(), records.pairs(), strict=True)
            for offset, time_ms, (row, value) in places:
                if row is not None and is_own(row):
                    own.write([(row, value)])
                    touched = offset, time_ms
                elif row == POSITION and touched:
                    position = None if value is None else unpack_position(value)
                    if position is not None and position.rules != rules:
                        plan, rules = plan_for(site, changelog.at.partition, position), dict(position.rules)
                    yield *touched, state_of(plan, own)
                    touched = None
    if touched and plan.task is None:
        yield *touched, state_of(plan, own)


# ---------------------------------------------------------------- digest, diff


def digests(site: StateLocation, partitions: Sequence[int], stage: str | None = None) -> QueryResult:
    """The digest of each task's state here, at the store's own event time."""
    found: list[dict[str, Any]] = []
    lines: list[str] = []
    for here, partition in site.found(partitions, stage):
        with reading(here.store(partition)) as store:
            position = position_of(store)
            digest = digest_of(plan_for(here, partition, position), store)
        where = position_data(position)
        found.append({**here.placed(partition), "digest": digest, **where})
        places = "".join(f", {name} up to {offset:,}" for name, offset in where["inputs"].items())
        lines.append(f"{here.short(partition)}  {digest}  {event_time_text(position)}{places}")
    return QueryResult(found, lines)


def diff(site: StateLocation, left: Path, right: Path, limit: int) -> QueryResult:
    """Keys whose state is not the same in two folders, each at its own event time."""
    sides = [replace(site, state=left), replace(site, state=right)]
    found: list[dict[str, Any]] = []
    for stage, partition in sorted({(each.stage, one) for side in sides for each, one in side.found()}):
        here = site.at(stage)
        (plan, ones), (_, others) = (_states(side.at(stage), partition) for side in sides)
        for row, one, other in differences(ones, others):
            how = "only in the first" if other is None else "only in the second" if one is None else "differs"
            if row[:1] == USER and here.plan.task is not None:
                rule, text = named(row)
                key: list[Any] = [text]
            else:
                packed, name, _, _ = row_parts(ROW + row)
                rule, key = rule_name(plan, name), list(decode_key(packed))
            found.append({**here.placed(partition), "key": key, "rule": rule, "how": how})
    lines = [f"{_place(each)}  {key_text(each['key'])}  {each['rule']}  {each['how']}" for each in found[:limit]]
    more = [f"({len(found) - limit:,} more)"] if len(found) > limit else []
    return QueryResult(found, [*lines, *more] or ["equal"])


def _states(side: StateLocation, partition: int) -> tuple[Plan, list[tuple[bytes, bytes]]]:
    if not is_store(side.store(partition)):
        return side.plan, []
    with reading(side.store(partition)) as store:
        position = position_of(store)
        plan = plan_for(side, partition, position)
        if plan.task is not None:
            return plan, list(store.range(USER, after(USER)))
        return plan, canonical(plan, store, watermark_of(position))
