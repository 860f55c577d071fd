"""What a published change does to the rules of one task: which go on, start, drain, wait for history or stay out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from samovar.patterns.engine.matcher import RuleFailure
from samovar.service.offline.trial import plan_of_rules
from samovar.tasks.model.plan import ActivationPolicy, Plan, PublishedRule, RulesetChange
from samovar.tasks.rules.migration import is_due, migrate, plan_of_facts, quarantine

RULE = """
rule: {name}
match: |
  sequence by card with maxspan=10m
    [purchase where amount < {limit}] as small
    [purchase where amount > 100] as big
"""
TEN_MINUTES = 600_000


def plan(
    change: int | None,
    *,
    policies: dict[str, ActivationPolicy] | None = None,
    draining: frozenset[str] = frozenset(),
    **limits: int,
) -> Plan:
    """Rules by name, each with its limit, as change number `change`; None: they are those of files."""
    texts = [RULE.format(name=name, limit=limit) for name, limit in limits.items()]
    made = plan_of_rules(texts or [RULE.format(name="none", limit=1)], {"purchase": {"key": "card"}}, {}, {})
    if not texts:
        made = replace(made, rules=())
    if change is None:
        return made
    rules = tuple(replace(rule, number=change) for rule in made.rules)
    return replace(made, rules=rules, ruleset_change=RulesetChange(change, policies or {}, draining))


def rules_of(found: Plan) -> dict[str, PublishedRule]:
    return {rule.name: rule for rule in found.rules}


def test_a_change_is_due_once_and_only_where_something_was_published() -> None:
    files, first, second = plan(None, a=1), plan(1, a=1), plan(2, a=2)
    assert not is_due(files, files, 0)
    assert is_due(files, first, 0)
    assert not is_due(first, first, 0)
    assert is_due(first, second, 0)
    assert is_due(second, replace(second, storm={"a": (1, 1000)}), 0)


def test_a_rule_that_did_not_change_goes_on_and_others_start_and_end() -> None:
    found = migrate(plan(1, a=1, b=1), plan(2, a=1, c=1), 1_000)
    assert list(rules_of(found.plan)) == ["a", "c"]
    assert (found.moves, found.warm) == ({}, ())


def test_a_new_version_may_let_the_old_one_drain_until_nothing_of_it_can_be_open() -> None:
    before = plan(1, a=1)
    found = migrate(before, plan(2, policies={"a": ActivationPolicy(drain=True)}, a=2), 1_000)
    old = before.rules[0]
    drained = rules_of(found.plan)[f"a@{old.version}"]
    assert (drained.began_by_ms, drained.drains_until_ms) == (1_000, 1_000 + TEN_MINUTES)
    assert not is_due(found.plan, plan(2, a=2), 1_000 + TEN_MINUTES)
    later = 1_001 + TEN_MINUTES
    assert is_due(found.plan, plan(2, a=2), later)
    assert list(rules_of(migrate(found.plan, plan(2, a=2), later).plan)) == ["a"]


def test_a_rule_that_is_no_more_drains_only_where_that_was_asked_for() -> None:
    assert migrate(plan(1, a=1, b=1), plan(2, a=1), 1_000).plan.rules[1:] == ()
    found = migrate(plan(1, a=1, b=1), plan(2, draining=frozenset({"b"}), a=1), 1_000)
    assert [rule.id for rule in found.plan.rules if rule.drains] == ["b"]


def test_a_new_rule_waits_for_history_or_gets_it() -> None:
    cold = migrate(plan(1, a=1), plan(2, policies={"b": ActivationPolicy(cold_ms=500)}, a=1, b=1), 1_000)
    assert rules_of(cold.plan)["b"].alerts_from_ms == 1_500
    assert rules_of(migrate(cold.plan, plan(3, a=1, b=1), 1_499).plan)["b"].alerts_from_ms == 1_500
    assert rules_of(migrate(cold.plan, plan(3, a=1, b=1), 1_500).plan)["b"].alerts_from_ms is None
    warm = migrate(plan(1, a=1), plan(2, policies={"b": ActivationPolicy(warm_from_ms=1)}, a=1, b=1), 1_000)
    assert warm.warm == ("b",)
    unborn = migrate(plan(1, a=1), plan(2, policies={"b": ActivationPolicy(cold_ms=500)}, a=1, b=1), None)
    assert rules_of(unborn.plan)["b"].alerts_from_ms is None  # no event time yet: there is no history to miss


def failure(rule: PublishedRule) -> RuleFailure:
    return RuleFailure(rule.id, rule.version, ("c1",), "over its budget")


def test_what_is_in_quarantine_stays_out_until_somebody_publishes_it_again() -> None:
    before = plan(1, a=1, b=1)
    taken = quarantine(before, failure(before.rules[0]))
    assert taken is not None
    assert taken.facts()["quarantine"]["rule"] == "a"
    assert taken.plan.versions == {"b": before.rules[1].version}
    assert quarantine(taken.plan, failure(before.rules[0])) is None
    assert not is_due(taken.plan, before, 1_000)
    again = plan(2, a=1, b=1)
    enabled = replace(again, rules=(replace(again.rules[0], number=2), again.rules[1]))
    assert set(migrate(taken.plan, enabled, 1_000).plan.versions) == {"a", "b"}
    untouched = replace(again, rules=(replace(again.rules[0], number=1), again.rules[1]))
    assert set(migrate(taken.plan, untouched, 1_000).plan.versions) == {"b"}


def test_a_replay_makes_the_same_plan_from_the_journal() -> None:
    found = migrate(plan(1, a=1), plan(2, policies={"a": ActivationPolicy(drain=True)}, a=2), 1_000)
    facts: dict[str, Any] = found.facts()
    assert plan_of_facts(plan(None, a=1), facts).rules == found.plan.rules
