"""What the stores of this node hold, for questions about keys. Reads secondary instances, never the containers' own."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import groupby, islice
from typing import Any, TypeAlias

from samovar.changelog.formats.record import ROW, row_parts
from samovar.changelog.partitioner import key_text as record_key
from samovar.changelog.partitioner import partition_of
from samovar.patterns.engine.compile import RulePlan
from samovar.patterns.engine.matcher import decode_key
from samovar.patterns.syntax.tree import Field, History, Scalar
from samovar.patterns.syntax.unparse import unparse
from samovar.service.alerts.index import key_text
from samovar.service.masking.fields import HIDDEN, Masks
from samovar.service.masking.lineage import Flow
from samovar.service.query.commands import refuse_no_key, with_events
from samovar.service.query.context import QueryContext
from samovar.service.query.state.view import FOREVER, find_key, resolve_key
from samovar.service.query.task_state import held_of, scanned
from samovar.service.query.verify import rule_name
from samovar.service.topology.stores import ROWS_END, StateLocation, is_store, plan_for, position_of
from samovar.state.errors import StoreError
from samovar.tasks.model.plan import Plan

Task: TypeAlias = tuple[str, int]  # stage and partition
SCANNED_KEYS = 20_000  # of a task, to find those of one rule


# ---------------------------------------------------------------- which tasks


def tasks_of_key(context: QueryContext, text: str, rule: str | None, asked: str) -> list[Task]:
    """The tasks that may hold something of a key."""
    site = context.rule_cache.site()
    refuse_no_key(site, text, rule, None, asked)
    found: dict[Task, None] = {}
    for here in site.stages():
        for partition in partitions_for(here, text, rule):
            found[here.stage, partition] = None
    return list(found)


def partitions_for(site: StateLocation, text: str, rule: str | None) -> Collection[int]:
    """Where a key's state is in a stage: one partition where that can be told, else all."""
    if site.plan.task is not None:
        return [partition_of(text.encode(), site.partitions)] if rule is None else []
    found: set[int] = set()
    for each in site.plan.program.rules:
        if rule is not None and each.rule.id != rule:
            continue
        for key in resolve_key(site.plan, text, each.rule.id).values():
            placed = _placed(each, site.plan, key)
            if placed is None:
                return range(site.partitions)
            found.add(partition_of(placed, site.partitions))
    return sorted(found)


def _placed(rule: RulePlan, plan: Plan, key: Sequence[Scalar]) -> bytes | None:
    """The text that a key's records are placed by; None where rules do not tell."""
    fields = {spec.key for spec in plan.inputs}
    for part, value in zip(rule.rule.form.by, key, strict=True):
        if isinstance(part.value, Field) and fields == {part.value.path}:
            return record_key(value)
    return None


# ---------------------------------------------------------------- a key


def local_state_of(context: QueryContext, tasks: Sequence[Task], text: str, rule: str | None) -> list[dict[str, Any]]:
    """All that these tasks hold of a key."""
    site = context.rule_cache.site()
    found: list[dict[str, Any]] = []
    for stage, partition in tasks:
        here = site.at(stage)
        if is_store(here.store(partition)):
            found += _held(context, here, partition, text, rule)
    return found


def _held(
    context: QueryContext, here: StateLocation, partition: int, text: str, rule: str | None
) -> Iterator[dict[str, Any]]:
    with context.stores.reading(here.store(partition)) as store:
        position = position_of(store)
        plan = plan_for(here, partition, position)
        watermark = None if position is None else position.watermark
        where = {"stage": here.stage, "partition": partition, "watermark": watermark}
        if plan.task is not None:
            held = held_of(plan, store, text)
            if rule is None and not held.is_empty:
                yield {**where, **held.data()}
            return
        for key in resolve_key(plan, text, rule):
            state = find_key(plan, store, key, rule)
            if not state.is_empty:
                told = state.data()
                bound = with_events(context.events, here, position, told["rules"])
                told["rules"] = [_titled(context, each) for each in bound]
                yield {**where, **told}


def _titled(context: QueryContext, rule: Mapping[str, Any]) -> dict[str, Any]:
    known = context.rule_cache.get().rules.get(rule["rule"])
    return {**rule, "title": None if known is None else known.title, "by": [] if known is None else _by(known)}


def _by(rule: Any) -> list[str]:
    return [key.name for key in rule.form.by]


# ---------------------------------------------------------------- many keys


def keys_here(context: QueryContext, tasks: Sequence[Task], rule: str | None, limit: int) -> list[dict[str, Any]]:
    """Keys that have state, in the order of their bytes."""
    site = context.rule_cache.site()
    found: list[dict[str, Any]] = []
    for stage, partition in tasks:
        here = site.at(stage)
        if not is_store(here.store(partition)) or len(found) >= limit:
            continue
        with context.stores.reading(here.store(partition)) as store:
            plan = plan_for(here, partition, position_of(store))
            states = _keys(plan, store) if plan.task is None else scanned(store)
            placed = ({"stage": stage, "partition": partition, **each} for each in islice(states, SCANNED_KEYS))
            wanted = (each for each in placed if rule is None or rule in each["rules"])
            found += islice(wanted, limit - len(found))
    for each in found:
        each["key_text"] = key_text(dict(enumerate(each["key"])))  # type: ignore[arg-type]
    return found


def _keys(plan: Plan, store: Any) -> Iterator[dict[str, Any]]:
    for key, group in groupby(store.range(ROW, ROWS_END), key=lambda pair: row_parts(pair[0])[0]):
        rows = list(group)
        names = dict.fromkeys(rule_name(plan, row_parts(row)[1]) for row, _ in rows)
        size = sum(len(row) + len(value) for row, value in rows)
        yield {"key": list(decode_key(key)), "rules": list(names), "rows": len(rows), "bytes": size}


def sessions_here(
    context: QueryContext, tasks: Sequence[Task], rule: str, limit: int, order: Callable[[str], str] | None = None
) -> list[dict[str, Any]]:
    """Live sessions of a rule: of the first keys, or of those that come first by an order of their texts."""
    site = context.rule_cache.site()
    found: list[dict[str, Any]] = []
    names = _by(context.rule_cache.rule(rule))
    keys = keys_here(context, tasks, rule, limit if order is None else SCANNED_KEYS)
    if order is not None:
        keys = sorted(keys, key=lambda each: order(each["key_text"]))[:limit]
    for each in keys:
        here = site.at(each["stage"])
        with suppress(StoreError), context.stores.reading(here.store(each["partition"])) as store:
            plan = plan_for(here, each["partition"], position_of(store))
            for key in resolve_key(plan, key_json(each["key"]), rule):
                for state in find_key(plan, store, key, rule).rules:
                    found += [_session(each, names, state, partial) for partial in state.get("partials", ())]
    return found


def key_json(key: Sequence[Any]) -> str:
    return json.dumps(list(key), ensure_ascii=False)


def _session(
    entry: Mapping[str, Any], names: Sequence[str], state: Mapping[str, Any], partial: Mapping[str, Any]
) -> dict[str, Any]:
    bound = partial.get("bound", ())
    fires = partial.get("fires_at")
    closes = fires if fires is not None and abs(fires) < FOREVER else state.get("due")
    return {
        "key": dict(zip(names, entry["key"], strict=False)),
        "key_text": entry["key_text"],
        "stage": entry["stage"],
        "partition": entry["partition"],
        "events": partial["events"],
        "since": partial.get("since"),
        "last": max((event["time"] for event in bound), default=None),
        "closes": closes,
    }


# ---------------------------------------------------------------- hidden


def masked_held(masks: Masks, context: QueryContext, held: Mapping[str, Any]) -> dict[str, Any]:
    """What is held of a key, with marked values hidden. A part of the key is shown where every rule that holds
    something has nothing marked there; a rule that is not known may have.
    """
    found, rules = dict(held), context.rule_cache.get().rules
    own = [rules.get(_rule_id(each)) for each in held.get("rules", ())] or [None]
    if "key_text" in held:
        found["key_ref"] = held["key_text"]
        if not all(map(context.lineage.has_clear_key, own)):
            found["key_ref"] = masks.pseudonym(held["key_text"])
            context.aliases.remember(masks, [held["key_text"]])
    if not masks.is_on:
        return found
    if "bytes" in held:
        found["bytes"] = None  # keys and histories are in it, and how long a value is tells something of it
    keys = [list(masks.key(dict(zip(_by(rule), held["key"], strict=False)), rule).values()) for rule in own if rule]
    whole = [list(map(masks.alias, held["key"]))] if None in own or not keys else []
    found["key"] = [
        next((each for each in shown if each != value), value)
        for value, *shown in zip(held["key"], *keys, *whole, strict=False)
    ]
    if "key_text" in held:
        found["key_text"] = found["key_ref"]
    found["rules"] = [_masked_rule(masks, each) if isinstance(each, dict) else each for each in held.get("rules", ())]
    if "histories" in held:
        calls = history_calls(context)
        found["histories"] = [masked_history(masks, each, calls) for each in held["histories"]]
    if "unreadable" in held:
        found["unreadable"] = [HIDDEN for _ in held["unreadable"]]
    if "stores" in held:
        found["stores"] = [{**each, "key": masks.alias(each.get("key")), "value": HIDDEN} for each in held["stores"]]
    if "timers" in held:
        found["timers"] = [{**each, "name": masks.alias(each.get("name"))} for each in held["timers"]]
    return found


def _rule_id(each: Any) -> str:
    return str(each["rule"] if isinstance(each, dict) else each)


def _masked_rule(masks: Masks, rule: Mapping[str, Any]) -> dict[str, Any]:
    partials = []
    for partial in rule.get("partials", ()):
        bound = [
            {**each, "event": masks.event(each["stream"], each["event"])} if "event" in each else each
            for each in partial.get("bound", ())
        ]
        partials.append({**partial, "bound": bound})
    return {**rule, "partials": partials} if "partials" in rule else dict(rule)


def history_calls(context: QueryContext) -> dict[str, History]:
    """The history functions of all rules, by their texts."""
    site = context.rule_cache.get().site
    plans = () if site is None else (here.plan for here in site.stages())
    return {unparse(call): call for plan in plans if plan.task is None for _, call in plan.program.histories.values()}


def masked_history(masks: Masks, history: Mapping[str, Any], calls: Mapping[str, History]) -> dict[str, Any]:
    """Of one that computes something from a marked field, or picks events by one, not even which events it kept: they
    are those that fit.
    """
    call = calls.get(str(history["call"]))
    if call is None or masks.history_flow(call) is Flow.COMPUTED:
        return {**history, "call": HIDDEN, "events": []}
    return {**history, "events": [{**each, "value": masks.history(call, each["value"])} for each in history["events"]]}
