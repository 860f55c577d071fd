"""Publish, disable, enable and roll back rules: looked at first (`plan_...`), then written to the rules topic.

What a change will do is found by the very function that a running task does it with (samovar.tasks.rules.migration),
over the plans of now and those that would be.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from samovar.changelog.formats.rules_topic import (
    AT_WORK,
    DISABLED,
    DRAIN,
    DROP,
    LIVE,
    QUARANTINED,
    SHADOW,
    Change,
    ListRecord,
    RuleRecord,
    append_changes,
)
from samovar.changelog.log import Log
from samovar.common.errors import Refused
from samovar.common.suggest import did_you_mean
from samovar.patterns.analysis.lint.linter import lint
from samovar.patterns.engine.compile import CompileError, compile_rules
from samovar.patterns.rulefile.loading import load_given, rendered
from samovar.patterns.semantics.versioning import cold_ms, version_of
from samovar.patterns.syntax.findings import Finding
from samovar.patterns.syntax.tree import Rule
from samovar.service.auth import audit
from samovar.service.config.models import ServiceFile
from samovar.service.query.state.counts import states_here
from samovar.service.rules.change_plan import DRAINED, DROPPED, KEPT, MOVED, NEW, ChangePlan, RuleChange, diff_of
from samovar.service.topology.plans import rule_plans
from samovar.service.topology.rule_registry import RuleEntry, RuleRegistry, folded, load_registry, with_registry
from samovar.service.topology.ruleset import BadRules, lists_of, rules_of, schema_of
from samovar.service.topology.topics import MAX_MESSAGE_BYTES, TopicRole, counted_topics, ensure_topic, partitions_of
from samovar.tasks.model.plan import Plan, PublishedRule
from samovar.tasks.rules.migration import RuleMigration, migrate, rules_facts

ITSELF = "samovar"  # the author of what the service does itself
ANY_WATERMARK = 0  # a watermark for looking at a change: what it does does not depend on it


def plan_publish(
    settings: ServiceFile,
    log: Log,
    text: str | Sequence[str],
    *,
    shadow: bool = False,
    warm_from_ms: int | None = None,
    drain: bool = False,
) -> ChangePlan:
    """What publishing these rules would do; refused where one has errors, and where none of them changes anything."""
    texts = [text] if isinstance(text, str) else list(text)
    registry = load_registry(settings, log)
    checked = [_check_rule(settings, registry, each) for each in texts]
    names = [rule.id for rule, _ in checked]
    for name in names:
        if names.count(name) > 1:
            raise Refused("rule-twice", f"the rule {name} is there twice", "Give one of them another id.")
    status, state = SHADOW if shadow else LIVE, DRAIN if drain else DROP
    records = [
        RuleRecord(
            name=rule.id,
            number=0,
            version=version_of(rule),
            text=each,
            status=status,
            state=state,
            warm_from_ms=warm_from_ms,
        )
        for (rule, _), each in zip(checked, texts, strict=True)
    ]
    same = _unchanged_rules(seeded(settings, registry), records)
    changed = [record for record in records if record.name not in same]
    findings = tuple(finding for rule, found in checked if rule.id not in same for finding in found)
    return replace(planned(settings, log, registry, "publish", changed, findings=findings), unchanged=same)


def plan_disable(settings: ServiceFile, log: Log, name: str, *, drain: bool = False) -> ChangePlan:
    registry = load_registry(settings, log)
    entry = _require_entry(seeded(settings, registry), name)
    if entry.status == DISABLED:
        raise Refused("rule-unchanged", f"the rule {name} is disabled already", "There is nothing to do.")
    record = RuleRecord(
        name=name, number=0, version=entry.version, text=entry.text, status=DISABLED, state=DRAIN if drain else DROP
    )
    return planned(settings, log, registry, "disable", [record])


def plan_enable(
    settings: ServiceFile, log: Log, name: str, *, shadow: bool = False, warm_from_ms: int | None = None
) -> ChangePlan:
    """A rule that was disabled runs again; one that is in shadow may alert, or the other way round."""
    registry = load_registry(settings, log)
    entry = _require_entry(seeded(settings, registry), name)
    status = SHADOW if shadow else LIVE
    if entry.status == status:
        raise Refused("rule-unchanged", f"the rule {name} is {status} already", "There is nothing to do.")
    _check_rule(settings, registry, entry.text)
    record = RuleRecord(
        name=name,
        number=0,
        version=entry.version,
        text=entry.text,
        status=status,
        state=DROP,
        warm_from_ms=warm_from_ms,
    )
    return planned(settings, log, registry, "enable", [record])


def plan_rollback(
    settings: ServiceFile, log: Log, name: str, to_number: int | None = None, *, drain: bool = False
) -> ChangePlan:
    """An earlier text again, as a new number; without `to_number` the one before the text of now."""
    registry = load_registry(settings, log)
    before = seeded(settings, registry)
    entry = _require_entry(before, name)
    text = _published_text(before, name, to_number)
    rule, _ = _check_rule(settings, registry, text)
    status = entry.status if entry.status in AT_WORK else LIVE
    record = RuleRecord(
        name=name, number=0, version=version_of(rule), text=text, status=status, state=DRAIN if drain else DROP
    )
    _unchanged_rules(before, [record])
    return planned(settings, log, registry, "rollback", [record])


def publish(settings: ServiceFile, log: Log, plan: ChangePlan, author: str, note: str = "") -> RuleEntry:
    """Writes a change that was looked at; the entry of its first rule."""
    entries = commit(settings, log, plan, author, note)
    return entries[plan.rules[0].rule.name]


def commit(settings: ServiceFile, log: Log, plan: ChangePlan, author: str, note: str) -> dict[str, RuleEntry]:
    """Writes any change; the entries of all rules after it."""
    changes = plan.changes(author, note, int(time.time() * 1000), fields_of(settings))
    touched: dict[str, Any] = {}
    if plan.rules:
        touched["rules"] = {each.rule.name: each.rule.number for each in plan.rules}
    if plan.lists:
        touched["lists"] = {
            name: {"added": list(each.added), "removed": list(each.removed)} for name, each in plan.lists.items()
        }
    _write(settings, log, changes, "lists" if plan.lists else f"rules.{plan.act}", touched, plan.base)
    return {entry.name: entry for entry in load_registry(settings, log).entries}


def disable(
    settings: ServiceFile, log: Log, name: str, author: str, note: str = "", *, drain: bool = False
) -> RuleEntry:
    return publish(settings, log, plan_disable(settings, log, name, drain=drain), author, note)


def enable(
    settings: ServiceFile, log: Log, name: str, author: str, note: str = "", *, shadow: bool = False
) -> RuleEntry:
    return publish(settings, log, plan_enable(settings, log, name, shadow=shadow), author, note)


def rollback(
    settings: ServiceFile, log: Log, name: str, author: str, note: str = "", to_number: int | None = None
) -> RuleEntry:
    return publish(settings, log, plan_rollback(settings, log, name, to_number), author, note)


def diff(settings: ServiceFile, log: Log, name: str, a: int, b: int) -> str:
    """Two numbers of a rule, line by line; empty where their texts are the same."""
    before, after = (text_of(settings, log, name, number) for number in (a, b))
    return diff_of(before, after, name, a, b)


def text_of(settings: ServiceFile, log: Log, name: str, number: int) -> str:
    """A rule as it was published under a number."""
    return _published_text(seeded(settings, load_registry(settings, log)), name, number)


def quarantine(settings: ServiceFile, log: Log, name: str, version: str, reason: str) -> bool:
    """Writes down that tasks took a rule out. False where there is nothing to write: another task was first, or the
    rule is another by now.
    """
    registry = load_registry(settings, log)
    before = seeded(settings, registry)
    entry = before.entry(name)
    if entry is None or entry.status not in AT_WORK:
        return False
    current = entry.version
    with suppress(Refused):
        # A list that changed makes a rule another version than its entry says: then it is found by its plan.
        partitions = partitions_of(settings, log.topics(counted_topics(settings)))
        for plan in rule_plans(with_registry(settings, before), partitions):
            current = plan.versions.get(name, current)
    if current != version:
        return False
    record = RuleRecord(name=name, number=entry.number + 1, version=entry.version, text=entry.text, status=QUARANTINED)
    now_ms, fields = int(time.time() * 1000), fields_of(settings)
    change = Change(
        number=before.change + 1,
        act="quarantine",
        author=ITSELF,
        at_ms=now_ms,
        note=reason,
        rules=(record,),
        lists={},
        fields=fields,
    )
    changes = [change]
    if not registry.change:
        changes.insert(
            0,
            Change(
                number=1,
                act="seed",
                author=ITSELF,
                at_ms=now_ms,
                note="",
                rules=seeds_of(settings),
                lists={},
                fields=fields,
            ),
        )
    _write(settings, log, changes, "rules.quarantine", {"rules": {name: record.number}})
    return True


def _write(
    settings: ServiceFile,
    log: Log,
    changes: Sequence[Change],
    what: str,
    touched: Mapping[str, Any],
    base: int | None = None,
) -> None:
    """Writes changes and their audit record; refused where there was another change since `base`."""
    ensure_topic(settings, log, TopicRole.RULES)
    ensure_topic(settings, log, TopicRole.AUDIT)
    if base is not None and load_registry(settings, log).change != base:
        what = "someone else changed the rules since this change was looked at"
        hint = "Nothing was written. Look at `samovar rules history`, and do it again."
        raise Refused("change-overtaken", what, hint)
    append_changes(log, settings.service, changes)
    last = changes[-1]
    audit.record(log, settings, last.author, what, {"change": last.number, "note": last.note, **touched})


# ---------------------------------------------------------------- looking


def _check_rule(settings: ServiceFile, registry: RuleRegistry, text: str) -> tuple[Rule, tuple[Finding, ...]]:
    """A rule without errors under this service file, and the lint's findings."""
    schema, path = schema_of(settings.streams), "<rule>"
    loaded = load_given(text, path, settings.params, lists_of(with_registry(settings, registry)), schema)
    if loaded.rule is None:
        shown = rendered([each for each in loaded.findings if each.level == "error"], {path: text})
        raise BadRules("rule-errors", "the rule has errors, and is not published", "The rules of now go on.", shown)
    try:
        compile_rules([loaded.rule])
    except CompileError as fault:
        raise Refused("rule-too-large", str(fault), "The rules of now go on.") from fault
    return loaded.rule, (*loaded.findings, *lint(loaded.rule, schema))


def _unchanged_rules(registry: RuleRegistry, records: Sequence[RuleRecord]) -> tuple[str, ...]:
    """Rules that are there as they would be published; refused where that is all of them."""
    entries = {entry.name: (entry.text, entry.status) for entry in registry.entries}
    found = tuple(
        each.name
        for each in records  # lists and parameters change by themselves
        if each.warm_from_ms is None and entries.get(each.name) == (each.text, each.status)
    )
    if len(found) == len(records):
        rules, are = ("rule", "is") if len(found) == 1 else ("rules", "are")
        what = f"the {rules} {', '.join(found)} {are} published like this already"
        raise Refused("rule-unchanged", what, "There is nothing to do.")
    return found


def seeded(settings: ServiceFile, registry: RuleRegistry) -> RuleRegistry:
    """The rulebook, or what it would be if it began now."""
    if registry.change:
        return registry
    return folded([Change(number=1, act="seed", author="", at_ms=0, note="", rules=seeds_of(settings))], settings)


def seeds_of(settings: ServiceFile) -> tuple[RuleRecord, ...]:
    """The rules of the folder as number 1 of each."""
    return tuple(
        RuleRecord(name=rule.id, number=1, version=version_of(rule), text=rule.text)
        for rule in rules_of(settings).rules
    )


def fields_of(settings: ServiceFile) -> dict[str, Any]:
    """The streams' fields as they are in the service file now."""
    return {name: stream.fields for name, stream in settings.streams.items() if stream.fields is not None}


def _require_entry(registry: RuleRegistry, name: str) -> RuleEntry:
    entry = registry.entry(name)
    if entry is None:
        names = [each.name for each in registry.entries]
        hint = did_you_mean(name, names) or f"Rules are {', '.join(names)}."
        raise Refused("unknown-rule", f"there is no rule `{name}`", hint)
    return entry


def _published_text(registry: RuleRegistry, name: str, number: int | None) -> str:
    """The text of a rule under a number; without one, the last that is not the text of now."""
    entry, history = _require_entry(registry, name), registry.history(name)
    if number is None:
        texts = [each.text for each in history if each.text != entry.text]
    else:
        texts = [each.text for each in history if each.number == number]
    if not texts:
        what = "no earlier text" if number is None else f"no number {number}"
        hint = f"`samovar rules history` shows them: {', '.join(str(each.number) for each in history)}."
        raise Refused("unknown-number", f"the rule {name} has {what}", hint)
    return texts[-1]


def planned(
    settings: ServiceFile,
    log: Log,
    registry: RuleRegistry,
    act: str,
    records: Sequence[RuleRecord],
    lists: Mapping[str, ListRecord] | None = None,
    findings: tuple[Finding, ...] = (),
) -> ChangePlan:
    """A change in full: with numbers, and with what it does in every stage."""
    lists, before = lists or {}, seeded(settings, registry)
    numbers = {entry.name: entry.number for entry in before.entries}
    records = [replace(record, number=numbers.get(record.name, 0) + 1) for record in records]
    change = Change(number=before.change + 1, act=act, author="", at_ms=0, note="", rules=tuple(records), lists=lists)
    after = folded([*before.changes, change], settings)
    partitions = partitions_of(settings, log.topics(counted_topics(settings)))
    plans = rule_plans(with_registry(settings, after), partitions)  # refused where a rule cannot run here
    for plan in plans:  # the journal tells all rules of a stage in one record, with their lists
        size = len(json.dumps(rules_facts(plan)))
        most = MAX_MESSAGE_BYTES * 3 // 4  # what drains comes on top
        if size > most:
            what = f"the rules of a stage and their lists would have {size:,} bytes together, and {most:,} are the most"
            raise Refused("change-too-large", what, "Disable rules that are not needed, or shorten the list.")
    current: list[Plan] = []
    with suppress(Refused):  # what was published before does not load: this change may be what repairs it
        current = rule_plans(with_registry(settings, before), partitions)
    stages, old_stages = [plan.stage for plan in plans], [plan.stage for plan in current]
    return ChangePlan(
        base=registry.change,
        act=act,
        rules=_rule_changes(settings, partitions, before, current, plans, records),
        lists=lists,
        findings=findings,
        seeds=() if registry.change else before.changes[0].rules,
        new_stages=tuple(each for each in stages if current and each not in old_stages),
        gone_stages=tuple(each for each in old_stages if each not in stages),
    )


def _rule_changes(
    settings: ServiceFile,
    partitions: int,
    before: RuleRegistry,
    current: Sequence[Plan],
    wanted: Sequence[Plan],
    records: Sequence[RuleRecord],
) -> tuple[RuleChange, ...]:
    """What a change does to its rules, as `migrate` tells it; one of lists, to those that name them."""
    old, new = _at_work(current), _at_work(wanted)
    entries = {entry.name: entry for entry in before.entries}
    if not records:  # rules whose version changes with a list; they are not published again
        records = [
            RuleRecord(
                name=name,
                number=entries[name].number,
                version=rule.version,
                text=entries[name].text,
                status=entries[name].status,
            )
            for name, (_, rule) in new.items()
            if name in old and old[name][1].version != rule.version
        ]
    # States are counted only where there can be any, since it takes looking at all rows.
    stages = dict.fromkeys(old[each.name][0].stage for each in records if each.name in old)
    counts = states_here(settings, list(stages), partitions) if stages else None
    stage_plans = {plan.stage: plan for plan in wanted}
    migrations = {
        plan.stage: migrate(plan, stage_plans[plan.stage], ANY_WATERMARK)
        for plan in current
        if plan.stage in stage_plans
    }
    changes = []
    for record in records:
        diff, state, states, shadow_ms = "", NEW, None, 0
        entry = entries.get(record.name)
        if entry is not None:
            diff = diff_of(entry.text, record.text, record.name, entry.number, record.number)
        if record.name in old:
            plan, rule = old[record.name]
            state = _state_after(rule, migrations.get(plan.stage))
            states = None if counts is None else counts.states.get(f"{record.name}@{rule.version}", 0)
        if record.name in new:
            plan, rule = new[record.name]
            migration = migrations.get(plan.stage)
            if migration is None:  # a stage that begins with this change: nothing was forwarded to it before
                shadow_ms = cold_ms(next(each.rule for each in plan.program.rules if each.rule.id == rule.id))
            else:
                own = next(each for each in migration.plan.rules if each.id == rule.id and not each.drains)
                shadow_ms = 0 if own.alerts_from_ms is None else own.alerts_from_ms - ANY_WATERMARK
        is_whole = counts is None or counts.is_whole
        changes.append(
            RuleChange(rule=record, diff=diff, state=state, states=states, cold_ms=shadow_ms, states_whole=is_whole)
        )
    return tuple(changes)


def _at_work(plans: Sequence[Plan]) -> dict[str, tuple[Plan, PublishedRule]]:
    return {rule.id: (plan, rule) for plan in plans for rule in plan.rules if rule.quarantined is None}


def _state_after(rule: PublishedRule, migration: RuleMigration | None) -> str:
    """What becomes of the partial matches of a rule."""
    if migration is None:
        return DROPPED
    store = f"{rule.id}@{rule.version}"
    if store in migration.moves:
        return MOVED
    if any(each.drains and (each.id, each.version) == (rule.id, rule.version) for each in migration.plan.rules):
        return DRAINED
    return KEPT if store in migration.plan.program.stores else DROPPED
