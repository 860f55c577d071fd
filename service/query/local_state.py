"""What the stores of this node hold, for questions about keys. Reads secondary instances, never the containers' own."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, TypeAlias

from samovar.changelog.partitioner import key_text as record_key
from samovar.changelog.partitioner import partition_of
from samovar.patterns.syntax.tree import Field, History, Rule
from samovar.patterns.syntax.unparse import unparse
from samovar.service.alerts.index import key_text
from samovar.service.masking.fields import HIDDEN, Masks
from samovar.service.masking.lineage import Flow
from samovar.service.query.commands import keys_in, refuse_no_key, states_of_key
from samovar.service.query.context import QueryContext
from samovar.service.query.state.view import FOREVER, find_key, resolve_key
from samovar.service.topology.stores import is_store, plan_for, position_of
from samovar.state.errors import StoreError

Task: TypeAlias = tuple[str, int]  # stage and partition
SCANNED_KEYS = 20_000  # of a task, to find those of one rule


def tasks_of_key(context: QueryContext, text: str, rule: str | None, asked: str) -> list[Task]:
    """The tasks that may hold something of a key: of a stage one where that can be told, else all."""
    site = context.rule_cache.site()
    refuse_no_key(site, text, rule, None, asked)
    found: list[Task] = []
    for here in site.stages():
        partitions: set[int] = set()
        if here.plan.task is not None and rule is None:
            partitions.add(partition_of(text.encode(), here.partitions))
        placed_by = {spec.key for spec in here.plan.inputs}
        for each in here.plan.program.rules:
            if rule is not None and each.rule.id != rule:
                continue
            for key in resolve_key(here.plan, text, each.rule.id).values():
                parts = zip(each.rule.form.by, key, strict=True)
                texts = [
                    record_key(value)
                    for part, value in parts
                    if isinstance(part.value, Field) and placed_by == {part.value.path}
                ]
                placed = next(iter(texts), None)
                homes = range(here.partitions) if placed is None else [partition_of(placed, here.partitions)]
                partitions.update(homes)
        found += [(here.stage, partition) for partition in sorted(partitions)]
    return found


def local_state_of(context: QueryContext, tasks: Sequence[Task], text: str, rule: str | None) -> list[dict[str, Any]]:
    """All that these tasks hold of a key."""
    site, rules = context.rule_cache.site(), context.rule_cache.get().rules
    found: list[dict[str, Any]] = []
    for stage, partition in tasks:
        here = site.at(stage)
        if not is_store(here.store(partition)):
            continue
        with context.stores.reading(here.store(partition)) as store:
            for position, state in states_of_key(context.events, here, partition, store, text, rule):
                told = state.data()
                for each in told.get("rules", ()):
                    known = rules.get(each["rule"])
                    each["title"] = None if known is None else known.title
                    each["by"] = _by(known)
                watermark = None if position is None else position.watermark
                found.append({"stage": stage, "partition": partition, "watermark": watermark, **told})
    return found


def _by(rule: Rule | None) -> list[str]:
    return [] if rule is None else [key.name for key in rule.form.by]


def keys_here(context: QueryContext, tasks: Sequence[Task], rule: str | None, limit: int) -> list[dict[str, Any]]:
    """Keys that have state, in the order of their bytes."""
    site = context.rule_cache.site()
    found: list[dict[str, Any]] = []
    for stage, partition in tasks:
        here = site.at(stage)
        if not is_store(here.store(partition)) or len(found) >= limit:
            continue
        with context.stores.reading(here.store(partition)) as store:
            states = islice(keys_in(plan_for(here, partition, position_of(store)), store), SCANNED_KEYS)
            wanted = (each for each in states if rule is None or rule in each["rules"])
            for each in islice(wanted, limit - len(found)):
                text = key_text(dict(enumerate(each["key"])))  # type: ignore[arg-type]
                found.append({"stage": stage, "partition": partition, **each, "key_text": text})
    return found


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
            for key in resolve_key(plan, json.dumps(each["key"], ensure_ascii=False), rule):
                for state in find_key(plan, store, key, rule).rules:
                    found += [_session(each, names, state, partial) for partial in state.get("partials", ())]
    return found


def _session(
    entry: Mapping[str, Any], names: Sequence[str], state: Mapping[str, Any], partial: Mapping[str, Any]
) -> dict[str, Any]:
    fires = partial.get("fires_at")
    return {
        "key": dict(zip(names, entry["key"], strict=False)),
        "key_text": entry["key_text"],
        "stage": entry["stage"],
        "partition": entry["partition"],
        "events": partial["events"],
        "since": partial.get("since"),
        "last": max((event["time"] for event in partial.get("bound", ())), default=None),
        "closes": fires if fires is not None and abs(fires) < FOREVER else state.get("due"),
    }


def masked_held(masks: Masks, context: QueryContext, held: Mapping[str, Any]) -> dict[str, Any]:
    """What is held of a key, with marked values hidden. A part of the key is shown where every rule that holds
    something has nothing marked there; a rule that is not known may have.
    """
    found, rules = dict(held), context.rule_cache.get().rules
    ids = [str(each["rule"] if isinstance(each, dict) else each) for each in held.get("rules", ())]
    own = [rules.get(each) for each in ids] or [None]
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
        site = context.rule_cache.get().site
        plans = [here.plan for here in site.stages()] if site is not None else []
        known = [call for plan in plans if plan.task is None for _, call in plan.program.histories.values()]
        calls = {unparse(call): call for call in known}
        found["histories"] = [masked_history(masks, each, calls) for each in held["histories"]]
    if "unreadable" in held:
        found["unreadable"] = [HIDDEN for _ in held["unreadable"]]
    if "stores" in held:
        found["stores"] = [{**each, "key": masks.alias(each.get("key")), "value": HIDDEN} for each in held["stores"]]
    if "timers" in held:
        found["timers"] = [{**each, "name": masks.alias(each.get("name"))} for each in held["timers"]]
    return found


def _masked_rule(masks: Masks, rule: Mapping[str, Any]) -> dict[str, Any]:
    partials = []
    for partial in rule.get("partials", ()):
        bound = [
            {**each, "event": masks.event(each["stream"], each["event"])} if "event" in each else each
            for each in partial.get("bound", ())
        ]
        partials.append({**partial, "bound": bound})
    return {**rule, "partials": partials} if "partials" in rule else dict(rule)


def masked_history(masks: Masks, history: Mapping[str, Any], calls: Mapping[str, History]) -> dict[str, Any]:
    """Of one that computes something from a marked field, or picks events by one, not even which events it kept: they
    are those that fit.
    """
    call = calls.get(str(history["call"]))
    if call is None or masks.history_flow(call) is Flow.COMPUTED:
        return {**history, "call": HIDDEN, "events": []}
    return {**history, "events": [{**each, "value": masks.history(call, each["value"])} for each in history["events"]]}
