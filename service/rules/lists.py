"""Shared lists (`in $risky`): changed without publishing rules again. A change is one of the rules topic, and comes in
as one of rules does: between two batches, at a place that the journal tells.

A list begins as the service file has it, or else as the rules that name it declare it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from samovar.changelog.formats.rules_topic import ListRecord
from samovar.changelog.log import Log
from samovar.common.errors import Refused
from samovar.common.suggest import did_you_mean
from samovar.service.config.models import ServiceFile
from samovar.service.rules.change_plan import ChangePlan
from samovar.service.rules.publishing import commit, planned, seeded
from samovar.service.topology.rule_registry import load_registry, with_registry
from samovar.service.topology.ruleset import lists_of, rules_of

MAX_ITEMS = 10_000


def show(settings: ServiceFile, log: Log) -> dict[str, tuple[Any, ...]]:
    """All lists of the rules as they are now."""
    booked = with_registry(settings, seeded(settings, load_registry(settings, log)))
    known: Mapping[str, Any] = lists_of(booked)
    found: dict[str, tuple[Any, ...]] = {}
    for rule in reversed(rules_of(booked).rules):  # of several declarations the first counts
        found |= {name: tuple(items) for name, items in rule.lists.items()}
    found |= {name: tuple(items) for name, items in known.items()}
    return dict(sorted(found.items()))


def plan_lists(
    settings: ServiceFile, log: Log, name: str, *, add: Sequence[Any] = (), remove: Sequence[Any] = ()
) -> ChangePlan:
    """What a change of a list would do to the rules that name it; refused where it changes nothing."""
    registry = load_registry(settings, log)
    booked = with_registry(settings, seeded(settings, registry))
    known: Mapping[str, Any] = lists_of(booked)
    if name in known:
        before = tuple(known[name])
    else:
        declared = {rule.id: tuple(rule.lists[name]) for rule in rules_of(booked).rules if name in rule.lists}
        if not declared:
            names = sorted(show(settings, log))
            hint = did_you_mean(name, names) or (f"Lists are {', '.join(names)}." if names else "No rule has a list.")
            raise Refused("unknown-list", f"no rule has a list `{name}`", hint)
        if len(set(declared.values())) > 1:
            what = f"the rules {', '.join(declared)} each declare another list `{name}`"
            hint = f"Say what it is in the service file (`lists: {{{name}: [...]}}`): that counts for all of them."
            raise Refused("list-differs", what, hint)
        before = next(iter(declared.values()))
    added, removed, items = changed(before, add, remove)
    if not added and not removed:
        what = f"the list {name} has {'all' if add else 'none'} of these items already"
        raise Refused("list-unchanged", what, "There is nothing to do; `samovar lists show` shows it.")
    if len(items) > MAX_ITEMS:
        what = f"the list {name} would have {len(items):,} items, and {MAX_ITEMS:,} are the most"
        raise Refused("list-too-long", what, "Long lists belong into a stream that rules join.")
    return planned(settings, log, registry, "lists", [], {name: ListRecord(items, added, removed)})


def changed(before: Sequence[Any], add: Sequence[Any], remove: Sequence[Any]) -> tuple[list[Any], list[Any], list[Any]]:
    """What comes, what goes, and the list then. 1 and 1.0 are the same item, true and 1 are not.

    >>> changed(["a", 1], add=["a", True, "b"], remove=[1.0])
    ([True, 'b'], [1.0], ['a', True, 'b'])
    """
    known, coming, going = ({(isinstance(item, bool), item): item for item in items} for items in (before, add, remove))
    added = [item for each, item in coming.items() if each not in known]
    removed = [item for each, item in going.items() if each in known]
    return added, removed, [item for item in before if (isinstance(item, bool), item) not in going] + added


def add(
    settings: ServiceFile, log: Log, name: str, items: Sequence[Any], author: str, note: str = ""
) -> tuple[Any, ...]:
    """Puts items on a list; the list afterwards."""
    return _commit(settings, log, plan_lists(settings, log, name, add=items), author, note)


def remove(
    settings: ServiceFile, log: Log, name: str, items: Sequence[Any], author: str, note: str = ""
) -> tuple[Any, ...]:
    """Takes items from a list; the list afterwards."""
    return _commit(settings, log, plan_lists(settings, log, name, remove=items), author, note)


def _commit(settings: ServiceFile, log: Log, plan: ChangePlan, author: str, note: str) -> tuple[Any, ...]:
    commit(settings, log, plan, author, note)
    (record,) = plan.lists.values()
    return tuple(record.items)
