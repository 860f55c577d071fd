"""A change of published rules in one task: what is at work afterwards, and what becomes of the rows of states.

    wanted (as published, for all tasks)  --migrated, at this task's event time-->  standing (this task's own)

The standing rules are a row of the store, so that a restart goes on with them, and an entry of the journal, so that a
replay does the same at the same place. Both hold the same facts:

    b"w"   JSON: `v` first, `ruleset_change` (the number of the last change), `rules` (as in the journal)

A change is a commit of its own, made by the rules before it: rows, journal entry and position go into one transaction,
and the rules after it begin from what is committed, as after a restart. So a crash is before it or after it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from samovar.changelog.formats.record import BOOK, ROW, newer, renamed_row, row_parts
from samovar.common.errors import Refused
from samovar.common.wire import from_wire, to_wire
from samovar.patterns.engine.compile import compile_rules, state_shape
from samovar.patterns.engine.matcher import RuleFailure
from samovar.patterns.rulefile.rule_file import load_text
from samovar.patterns.semantics.versioning import draining_ms
from samovar.patterns.syntax.tree import Rule
from samovar.state.store import Change, Readable
from samovar.tasks.model.plan import MAIN, ActivationPolicy, Plan, PublishedRule, RulesetChange
from samovar.tasks.rules.rate_limiter import limits_facts, limits_in, limits_of, limits_row

FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class RuleMigration:
    """One change. `moves` are stores that go on under another name, `warm` rules whose history is folded."""

    plan: Plan
    moves: Mapping[str, str]
    warm: tuple[str, ...] = ()
    warm_from: Mapping[str, int] | None = None
    quarantine: Mapping[str, Any] | None = None  # the rule, its version, the key and the reason

    def facts(self) -> dict[str, Any]:
        """For the journal."""
        more: dict[str, Any] = {"moves": dict(self.moves)} if self.moves else {}
        if self.quarantine is not None:
            more["quarantine"] = dict(self.quarantine)
        if self.warm:
            more["warm"] = {"rules": list(self.warm), "from": dict(self.warm_from or {})}
        return {**rules_facts(self.plan), **more}


def rules_facts(plan: Plan) -> dict[str, Any]:
    """What the journal, and the row of the store, say about the rules at work."""
    ruleset_change = {} if plan.ruleset_change is None else {"change": plan.ruleset_change.change}
    storm = {} if not plan.storm else {"storm": limits_facts(plan.storm)}
    return {"rules": to_wire(plan.rules), **ruleset_change, **storm}


def is_due(standing: Plan, wanted: Plan, watermark: int | None) -> bool:
    """Whether a task has a change before it: another change, other parameters, or a version that has drained."""
    if wanted.ruleset_change is None:
        return False
    if standing.ruleset_change is None or standing.ruleset_change.change != wanted.ruleset_change.change:
        return True
    if dict(standing.storm) != dict(wanted.storm):
        return True
    # What is in quarantine here is not to come back because others do not know of it yet.
    has_drained = any(_has_drained(rule, watermark) for rule in standing.rules)
    return has_drained or standing.known_versions != wanted.known_versions


def migrate(standing: Plan, wanted: Plan, watermark: int | None) -> RuleMigration:
    """What is at work from here on in a task whose event time is this."""
    assert wanted.ruleset_change is not None
    before = {rule.id: rule for rule in standing.rules if not rule.drains}
    draining = {rule.name: rule for rule in standing.rules if rule.drains and not _has_drained(rule, watermark)}
    known = {f"{rule.id}@{rule.version}" for rule in standing.rules if rule.quarantined is None}
    rules: list[PublishedRule] = []
    moves: dict[str, str] = {}
    warm: list[str] = []
    for rule in wanted.rules:
        old, policies = before.pop(rule.id, None), wanted.ruleset_change.policies.get(rule.id, ActivationPolicy())
        draining.pop(f"{rule.id}@{rule.version}", None)
        if rule.quarantined is not None:
            rules.append(rule)
            continue
        if old is not None and old.quarantined is not None:
            # Nobody has enabled it since, as it was. What was in the folder becomes number 1.
            if old.version == rule.version and rule.number <= max(old.number, 1):
                rules.append(replace(rule, quarantined=old.quarantined))
                continue
            old = None
        moved = _moves(standing, wanted, old, rule)
        if old is not None and (old.version == rule.version or moved):
            moves |= moved
            until_ms = old.alerts_from_ms
            is_over = until_ms is not None and watermark is not None and watermark >= until_ms
            rules.append(replace(rule, alerts_from_ms=None if is_over else until_ms))
            continue
        if old is not None and policies.drain and watermark is not None:
            draining |= _draining_rules(standing, old, watermark)
        is_new = f"{rule.id}@{rule.version}" not in known and watermark is not None
        if is_new and policies.warm_from_ms is not None:
            warm.append(rule.id)
        elif is_new and policies.cold_ms and watermark is not None:
            rule = replace(rule, alerts_from_ms=watermark + policies.cold_ms)
        rules.append(rule)
    for name, old in before.items():
        if old.quarantined is None and name in wanted.ruleset_change.draining and watermark is not None:
            draining |= _draining_rules(standing, old, watermark)
    plan = with_rules(wanted, [*rules, *draining.values()])
    return RuleMigration(plan=plan, moves=moves, warm=tuple(warm))


def quarantine(standing: Plan, failure: RuleFailure) -> RuleMigration | None:
    """The change that takes a rule out which went over a step's budget; None where it is not at work."""
    rules: list[PublishedRule] = []
    for rule in standing.rules:
        if (rule.id, rule.version) != (failure.rule, failure.version) or rule.quarantined is not None:
            rules.append(rule)
        elif not rule.drains:  # what drains goes for good
            rules.append(replace(rule, quarantined=failure.reason))
    if tuple(rules) == standing.rules:
        return None
    facts = {"rule": failure.rule, "version": failure.version, "key": list(failure.key), "reason": failure.reason}
    return RuleMigration(plan=with_rules(standing, rules), moves={}, quarantine=facts)


def _has_drained(rule: PublishedRule, watermark: int | None) -> bool:
    return rule.drains_until_ms is not None and watermark is not None and watermark > rule.drains_until_ms


def _draining_rules(standing: Plan, old: PublishedRule, watermark: int) -> dict[str, PublishedRule]:
    until_ms = watermark + draining_ms(_rule(standing, old))
    # What was in the folder is number 1 of what is published.
    found = replace(old, number=old.number or 1, began_by_ms=watermark, drains_until_ms=until_ms)
    return {found.name: found}


def _moves(standing: Plan, wanted: Plan, old: PublishedRule | None, new: PublishedRule) -> dict[str, str]:
    """Stores that a rule keeps though its lists changed: its text is the same, and so is the shape of its states."""
    if old is None or old.version == new.version or (old.text, old.params) != (new.text, new.params):
        return {}
    one, other = _rule(standing, old), _rule(wanted, new)
    if state_shape(one) != state_shape(other):
        return {}
    pairs = zip(compile_rules([one]).histories, compile_rules([other]).histories, strict=True)
    histories = {
        left: right
        for left, right in pairs
        if left != right and left not in wanted.program.stores and right not in standing.program.stores
    }
    return {f"{old.id}@{old.version}": f"{new.id}@{new.version}", **histories}


def _rule(plan: Plan, text: PublishedRule) -> Rule:
    return next(each.rule for each in plan.program.rules if (each.rule.id, each.version) == (text.id, text.version))


def with_rules(plan: Plan, texts: Sequence[PublishedRule]) -> Plan:
    """The plan with these rules, compiled again where they are others."""
    if tuple(texts) == plan.rules:
        return plan
    known = {(each.rule.id, each.version): each.rule for each in plan.program.rules}
    at_work = [text for text in texts if text.quarantined is None]
    rules = [known.get((text.id, text.version)) or rule_of(text) for text in at_work]
    return replace(plan, program=compile_rules(rules), rules=tuple(texts))


def rule_of(text: PublishedRule) -> Rule:
    """A rule of the journal, which must still mean what it meant."""
    loaded = load_text(text.text, f"<journal: {text.id}>", params=text.params, lists=text.lists)
    if loaded.rule is not None:
        version = compile_rules([loaded.rule]).rules[0].version
        if version == text.version:
            return loaded.rule
        found = f"it is version {version} here"
    else:
        found = "it has errors here"
    raise Refused(
        "rule-changed-meaning",
        f"the rule {text.id} of the journal is version {text.version}, and {found}",
        "The language means something else in this version of Samovar: rebuild with the version that ran it.",
    )


def plan_of_facts(plan: Plan, facts: Mapping[str, Any], streams: Iterable[str] | None = None) -> Plan:
    """The plan with the rules that the journal, or the row of a store, tells; of a stage, with the streams it had."""
    texts = [from_wire(PublishedRule, each) for each in facts["rules"]]
    inputs = plan.inputs
    if plan.stage != MAIN and streams is not None:
        had = set(streams)
        inputs = tuple(spec for spec in (*plan.inputs, *plan.others) if spec.stream in had)
    change = facts.get("change")
    policies = {} if plan.ruleset_change is None else plan.ruleset_change.policies
    draining = frozenset() if plan.ruleset_change is None else plan.ruleset_change.draining
    ruleset_change = None if change is None else RulesetChange(change, policies, draining)
    storm = limits_of(facts.get("storm", {}))
    return replace(with_rules(plan, texts), inputs=inputs, ruleset_change=ruleset_change, storm=storm)


def ruleset_row(plan: Plan) -> list[Change]:
    """The row that says which rules are at work."""
    if plan.ruleset_change is None:
        return []
    return [(BOOK, json.dumps({"v": FORMAT, **rules_facts(plan)}, separators=(",", ":")).encode())]


def standing_rows(plan: Plan, store: Readable) -> list[Change]:
    """The rows that say what is at work, for a replay that begins or changes here."""
    if plan.ruleset_change is not None or plan.task is not None:
        return ruleset_row(plan)
    return limits_row(plan.storm) if dict(limits_in(store)) != dict(plan.storm) else []


def stored_ruleset(store: Readable) -> Mapping[str, Any] | None:
    """The rules that a store's states were made by, where they were published."""
    data = store.get(BOOK)
    if data is None:
        return None
    facts: dict[str, Any] = json.loads(data)
    if facts.pop("v") > FORMAT:
        raise newer("the rules of a task", json.loads(data)["v"], FORMAT)
    return facts


def migrated_rows(store: Readable, plan: Plan, moves: Mapping[str, str]) -> list[Change]:
    """Rows of states as they are after a change: some go on under another name, those of rules that are no more go."""
    changes: list[Change] = []
    for row, value in store.range(ROW, bytes([ROW[0] + 1])):
        name = row_parts(row)[1]
        if name in plan.program.stores and name not in moves:
            continue
        changes.append((row, None))
        if name in moves:
            changes.append((renamed_row(row, moves[name]), value))
    return [*changes, *ruleset_row(plan)]
