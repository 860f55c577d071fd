"""Publish, disable, enable and roll back rules: looked at first (`plan_...`), then written to the rules topic.

What a change will do is found by the very function that a running task does it with (samovar.tasks.rules.migration),
over the plans of now and those that would be.
"""

from __future__ import annotations

import json
import time
from collections import Counter
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
from samovar.patterns.semantics.versioning import cold_ms
from samovar.patterns.syntax.findings import Finding
from samovar.patterns.syntax.tree import Rule
from samovar.service.auth import audit
from samovar.service.config.models import ServiceFile
from samovar.service.query.state.counts import StateCounts, states_here
from samovar.service.rules.change_plan import DRAINED, DROPPED, KEPT, MOVED, NEW, ChangePlan, RuleChange, diff_of
from samovar.service.topology.plans import rule_plans
from samovar.service.topology.rule_registry import RuleEntry, RuleRegistry, folded, read_rulebook, with_book
from samovar.service.topology.ruleset import BadRules, lists_of, rules_of, schema_of
from samovar.service.topology.topics import MAX_MESSAGE_BYTES, TopicRole, counted_topics, ensure_topic, partitions_of
from samovar.tasks.model.plan import Plan, PublishedRule
from samovar.tasks.rules.migration import migrate, rules_facts

ITSELF = "samovar"  # the author of what the service does itself
NOWHEN = 0  # a watermark for looking at a change: what it does does not depend on it


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
    state = DRAIN if drain else DROP
    status = SHADOW if shadow else LIVE
    book = read_rulebook(settings, log)
    rules = [_checked(settings, book, each) for each in texts]
    _refuse_twice([rule.id for rule, _ in rules])
    records = [
        RuleRecord(rule.id, 0, compile_rules([rule]).rules[0].version, each, status, state, warm_from_ms)
        for (rule, _), each in zip(rules, texts, strict=True)
    ]
    same = _unchanged(seeded(settings, book), records)
    changed = [record for record in records if record.name not in same]
    findings = tuple(finding for rule, found in rules if rule.id not in same for finding in found)
    return replace(planned(settings, log, book, "publish", changed, findings=findings), unchanged=same)


def _unchanged(book: RuleRegistry, records: Sequence[RuleRecord]) -> tuple[str, ...]:
    """Rules that are there as they would be published; refused where that is all of them."""
    found = tuple(each.name for each in records if _is_as(book.entry(each.name), each))
    if len(found) == len(records):
        one = len(found) == 1
        what = (
            f"the {'rule' if one else 'rules'} {', '.join(found)} {'is' if one else 'are'} published like this already"
        )
        raise Refused("rule-unchanged", what, "There is nothing to do.")
    return found


def _is_as(entry: RuleEntry | None, record: RuleRecord) -> bool:
    if entry is None or record.warm_from_ms is not None:
        return False
    return (entry.text, entry.status) == (record.text, record.status)  # lists and parameters change by themselves


def plan_disable(settings: ServiceFile, log: Log, name: str, *, drain: bool = False) -> ChangePlan:
    book = read_rulebook(settings, log)
    entry = _known(seeded(settings, book), name)
    if entry.status == DISABLED:
        raise Refused("rule-unchanged", f"the rule {name} is disabled already", "There is nothing to do.")
    record = RuleRecord(name, 0, entry.version, entry.text, DISABLED, DRAIN if drain else DROP)
    return planned(settings, log, book, "disable", [record])


def plan_enable(
    settings: ServiceFile, log: Log, name: str, *, shadow: bool = False, warm_from_ms: int | None = None
) -> ChangePlan:
    """A rule that was disabled runs again; one that is in shadow may alert, or the other way round."""
    book = read_rulebook(settings, log)
    entry = _known(seeded(settings, book), name)
    status = SHADOW if shadow else LIVE
    if entry.status == status:
        raise Refused("rule-unchanged", f"the rule {name} is {status} already", "There is nothing to do.")
    _checked(settings, book, entry.text)
    record = RuleRecord(name, 0, entry.version, entry.text, status, DROP, warm_from_ms)
    return planned(settings, log, book, "enable", [record])


def plan_rollback(
    settings: ServiceFile, log: Log, name: str, to_number: int | None = None, *, drain: bool = False
) -> ChangePlan:
    """An earlier text again, as a new number; without `to_number` the one before the text of now."""
    book = seeded(settings, read_rulebook(settings, log))
    entry, history = _known(book, name), book.history(name)
    others = [each for each in history if each.text != entry.text]
    wanted = [each for each in history if each.number == to_number] if to_number is not None else others[-1:]
    if not wanted:
        numbers = ", ".join(str(each.number) for each in history)
        hint = f"`samovar rules history` shows them: {numbers}."
        what = "no earlier text" if to_number is None else f"no number {to_number}"
        raise Refused("unknown-number", f"the rule {name} has {what}", hint)
    rule, _ = _checked(settings, book, wanted[0].text)
    version = compile_rules([rule]).rules[0].version
    status = entry.status if entry.status in AT_WORK else LIVE
    record = RuleRecord(name, 0, version, wanted[0].text, status, DRAIN if drain else DROP)
    _unchanged(book, [record])
    return planned(settings, log, read_rulebook(settings, log), "rollback", [record])


def publish(settings: ServiceFile, log: Log, plan: ChangePlan, author: str, note: str = "") -> RuleEntry:
    """Write a change that was looked at; the entry of its first rule."""
    entries = commit(settings, log, plan, author, note)
    return entries[plan.rules[0].rule.name]


def commit(settings: ServiceFile, log: Log, plan: ChangePlan, author: str, note: str) -> dict[str, RuleEntry]:
    """Write any change; the entries of all rules after it."""
    ensure_topic(settings, log, TopicRole.RULES)
    ensure_topic(settings, log, TopicRole.AUDIT)
    changes = plan.changes(author, note, int(time.time() * 1000), fields_of(settings))
    if read_rulebook(settings, log).change != plan.base:
        raise Refused(
            "change-overtaken",
            "someone else changed the rules since this change was looked at",
            "Nothing was written. Look at `samovar rules history`, and do it again.",
        )
    append_changes(log, settings.service, changes)
    what = "lists" if plan.lists else f"rules.{plan.act}"
    audit.record(log, settings, author, what, {"change": plan.number, "note": note, **_named(plan)})
    return {entry.name: entry for entry in read_rulebook(settings, log).entries}


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
    return diff_of(before, after, name, str(a), str(b))


def text_of(settings: ServiceFile, log: Log, name: str, number: int) -> str:
    """A rule as it was published under a number."""
    book = seeded(settings, read_rulebook(settings, log))
    _known(book, name)
    texts = {each.number: each.text for each in book.history(name)}
    if number not in texts:
        hint = f"`samovar rules history` shows them: {', '.join(map(str, texts))}."
        raise Refused("unknown-number", f"the rule {name} has no number {number}", hint)
    return texts[number]


def quarantine(settings: ServiceFile, log: Log, name: str, version: str, reason: str) -> bool:
    """Write down that tasks took a rule out. False where there is nothing to write: another task was first, or the rule
    is another by now.
    """
    book = read_rulebook(settings, log)
    before = seeded(settings, book)
    entry = before.entry(name)
    # A list that changed makes a rule another version than its entry says: then it is found by its plan.
    versions = {name: version for plan in _plans_of(settings, log, before) for name, version in plan.versions.items()}
    if entry is None or entry.status not in AT_WORK or versions.get(name, entry.version) != version:
        return False
    record = RuleRecord(name, entry.number + 1, entry.version, entry.text, QUARANTINED)
    now_ms, seeds = int(time.time() * 1000), () if book.change else seeds_of(settings)
    ensure_topic(settings, log, TopicRole.RULES)
    ensure_topic(settings, log, TopicRole.AUDIT)
    changes = [Change(1, "seed", ITSELF, now_ms, "", seeds, {}, fields_of(settings))] if seeds else []
    change = Change(before.change + 1, "quarantine", ITSELF, now_ms, reason, (record,), {}, fields_of(settings))
    append_changes(log, settings.service, [*changes, change])
    facts = {"change": change.number, "note": reason, "rules": {name: record.number}}
    audit.record(log, settings, ITSELF, "rules.quarantine", facts)
    return True


def _plans_of(settings: ServiceFile, log: Log, book: RuleRegistry) -> list[Plan]:
    with suppress(Refused):
        existing = log.topics(counted_topics(settings))
        return rule_plans(with_book(settings, book), partitions_of(settings, existing))
    return []


# ---------------------------------------------------------------- looking


def _checked(settings: ServiceFile, book: RuleRegistry, text: str) -> tuple[Rule, tuple[Finding, ...]]:
    """A rule without errors under this service file, and the lint's findings."""
    booked = with_book(settings, book)
    schema, path = schema_of(settings.streams), "<rule>"
    loaded = load_given(text, path, settings.params, lists_of(booked), schema)
    if loaded.rule is None:
        shown = rendered([each for each in loaded.findings if each.level == "error"], {path: text})
        raise BadRules("rule-errors", "the rule has errors, and is not published", "The rules of now go on.", shown)
    try:
        compile_rules([loaded.rule])
    except CompileError as fault:
        raise Refused("rule-too-large", str(fault), "The rules of now go on.") from fault
    return loaded.rule, (*loaded.findings, *lint(loaded.rule, schema))


def _refuse_twice(names: Sequence[str]) -> None:
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise Refused("rule-twice", f"the rule {twice[0]} is there twice", "Give one of them another id.")


def seeded(settings: ServiceFile, book: RuleRegistry) -> RuleRegistry:
    """The rulebook, or what it would be if it began now."""
    if book.change:
        return book
    return folded([Change(1, "seed", "", 0, "", seeds_of(settings))], settings)


def seeds_of(settings: ServiceFile) -> tuple[RuleRecord, ...]:
    """The rules of the folder as number 1 of each."""
    rules = rules_of(settings).rules
    return tuple(RuleRecord(rule.id, 1, compile_rules([rule]).rules[0].version, rule.text) for rule in rules)


def _known(book: RuleRegistry, name: str) -> RuleEntry:
    entry = book.entry(name)
    if entry is None:
        names = [each.name for each in book.entries]
        hint = did_you_mean(name, names) or f"Rules are {', '.join(names)}."
        raise Refused("unknown-rule", f"there is no rule `{name}`", hint)
    return entry


def planned(
    settings: ServiceFile,
    log: Log,
    book: RuleRegistry,
    act: str,
    records: Sequence[RuleRecord],
    lists: Mapping[str, ListRecord] | None = None,
    findings: tuple[Finding, ...] = (),
) -> ChangePlan:
    """A change in full: with numbers, and with what it does in every stage."""
    seeds = () if book.change else seeds_of(settings)
    before = seeded(settings, book)
    numbers = {entry.name: entry.number for entry in before.entries}
    numbered = [_numbered(record, numbers.get(record.name, 0) + 1) for record in records]
    change = Change(before.change + 1, act, "", 0, "", tuple(numbered), lists or {})
    after = folded([*before.changes, change], settings)
    existing = log.topics(counted_topics(settings))
    partitions = partitions_of(settings, existing)
    plans = rule_plans(with_book(settings, after), partitions)  # refused where a rule cannot run here
    _refuse_large(plans)
    standing: list[Plan] = []
    with suppress(Refused):  # what was published before does not load: this change may be what repairs it
        standing = rule_plans(with_book(settings, before), partitions)
    look = _Looking(standing, plans, before)
    look.count(settings, partitions, [each.name for each in numbered] or look.relisted())
    names = [each.stage for each in plans], [each.stage for each in standing]
    return ChangePlan(
        book.change,
        act,
        tuple(look.at(record) for record in numbered) or look.touched(),
        lists or {},
        findings,
        seeds,
        tuple(each for each in names[0] if standing and each not in names[1]),
        tuple(each for each in names[1] if each not in names[0]),
    )


def _refuse_large(plans: Sequence[Plan]) -> None:
    """The journal tells all rules of a stage in one record, with their lists."""
    for each in plans:
        size = len(json.dumps(rules_facts(each)))
        most = MAX_MESSAGE_BYTES * 3 // 4  # what drains comes on top
        if size > most:
            raise Refused(
                "change-too-large",
                f"the rules of a stage and their lists would have {size:,} bytes together, and {most:,} are the most",
                "Disable rules that are not needed, or shorten the list.",
            )


def _numbered(record: RuleRecord, number: int) -> RuleRecord:
    return RuleRecord(
        record.name, number, record.version, record.text, record.status, record.state, record.warm_from_ms
    )


def _at_work(plans: Sequence[Plan]) -> dict[str, tuple[Plan, PublishedRule]]:
    return {rule.id: (plan, rule) for plan in plans for rule in plan.rules if rule.quarantined is None}


class _Looking:
    """What a change does to rules, as `migrate` tells it."""

    def __init__(self, standing: Sequence[Plan], wanted: Sequence[Plan], before: RuleRegistry) -> None:
        self.before = before
        self.counted: StateCounts | None = None
        self.old, self.new = _at_work(standing), _at_work(wanted)
        stages = {plan.stage: plan for plan in wanted}
        both = [(plan, stages[plan.stage]) for plan in standing if plan.stage in stages]
        self.switches = {new.stage: migrate(old, new, NOWHEN) for old, new in both}

    def count(self, settings: ServiceFile, partitions: int, names: Sequence[str]) -> None:
        """How many states these rules have: only where there can be any, since it takes looking at all rows."""
        stages = dict.fromkeys(self.old[name][0].stage for name in names if name in self.old)
        self.counted = states_here(settings, list(stages), partitions) if stages else None

    def at(self, record: RuleRecord) -> RuleChange:
        entry = self.before.entry(record.name)
        diff = (
            ""
            if entry is None
            else diff_of(entry.text, record.text, record.name, str(entry.number), str(record.number))
        )
        cold = self._cold_ms(record.name)
        stage = self.new[record.name][0].stage if record.name in self.new else ""
        whole = self.counted is None or self.counted.is_whole
        return RuleChange(record, diff, self._state(record), self._count(record.name), cold, stage, whole)

    def relisted(self) -> list[str]:
        """Rules whose version changes with a list; they are not published again."""
        return [
            name for name, (_, new) in self.new.items() if name in self.old and self.old[name][1].version != new.version
        ]

    def touched(self) -> tuple[RuleChange, ...]:
        return tuple(self.at(self._record(name)) for name in self.relisted())

    def _record(self, name: str) -> RuleRecord:
        entry = self.before.entry(name)
        assert entry is not None
        return RuleRecord(name, entry.number, self.new[name][1].version, entry.text, entry.status)

    def _state(self, record: RuleRecord) -> str:
        old = self.old.get(record.name)
        if old is None:
            return NEW
        plan, text = old
        store, switch = f"{text.id}@{text.version}", self.switches.get(plan.stage)
        if switch is None:
            return DROPPED
        if store in switch.moves:
            return MOVED
        if any(rule.drains and rule.id == text.id and rule.version == text.version for rule in switch.plan.rules):
            return DRAINED
        return KEPT if store in switch.plan.program.stores else DROPPED

    def _count(self, name: str) -> int | None:
        old = self.old.get(name)
        return None if old is None or self.counted is None else self.counted.states.get(f"{name}@{old[1].version}", 0)

    def _cold_ms(self, name: str) -> int:
        if name not in self.new:
            return 0
        plan, _ = self.new[name]
        switch = self.switches.get(plan.stage)
        rule = next(each.rule for each in plan.program.rules if each.rule.id == name)
        if switch is None:  # a stage that begins with this change: nothing was forwarded to it before
            return cold_ms(rule)
        own = next(each for each in switch.plan.rules if each.id == name and not each.drains)
        return 0 if own.alerts_from_ms is None else own.alerts_from_ms - NOWHEN


# ---------------------------------------------------------------- writing


def fields_of(settings: ServiceFile) -> dict[str, Any]:
    """The streams' fields as they are in the service file now."""
    return {name: stream.fields for name, stream in settings.streams.items() if stream.fields is not None}


def _named(plan: ChangePlan) -> dict[str, Any]:
    rules = {each.rule.name: each.rule.number for each in plan.rules}
    lists = {name: {"added": list(each.added), "removed": list(each.removed)} for name, each in plan.lists.items()}
    return ({"rules": rules} if rules else {}) | ({"lists": lists} if lists else {})
