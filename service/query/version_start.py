"""Which rules a task had at work, and since when, as its journal tells."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from samovar.changelog.cursors import read_all
from samovar.changelog.formats.journal import JournalEntry, standing, unpack_entry
from samovar.changelog.log import Log, TopicPartition
from samovar.changelog.partitioner import key_text, partition_of
from samovar.common.errors import Refused
from samovar.common.wire import from_wire
from samovar.patterns.syntax.tree import Rule
from samovar.service.query.row_filters import containing
from samovar.service.topology.stages import stage_of
from samovar.service.topology.stores import StateLocation
from samovar.tasks.input.repartition_sink import ONE_KEY
from samovar.tasks.model.plan import MAIN, PublishedRule
from samovar.tasks.rules.migration import rule_of

KINDS = (b'"kind":"rules"', b'"kind":"rewind"')  # of entries that say which rules are at work


def start_of_version(site: StateLocation, rule: Rule, match: Mapping[str, Any]) -> int | None:
    """The event time from which on a version that began with no state was at work when an alert was raised; None where
    it was from the first, or went on with what was there.
    """
    # The task that raised it is that of the key, or of its events where they are not sent on.
    stage = stage_of(rule, site.settings.streams, site.partitions)
    topic = next((plan.topics.journal for plan in site.plans if plan.stage == stage), site.plan.topics.journal)
    places: Sequence[Sequence[Any]] = [place for each in match["steps"].values() for place in each]
    values = list(match["key"].values())
    if stage == MAIN:
        partition = int(places[0][1]) if places else 0
    else:
        partition = partition_of(key_text(values[0]) or b"" if values else ONE_KEY, site.partitions)
    entries = list(rule_entries(site.log, TopicPartition(topic, partition)))
    begun: JournalEntry | None = None
    for entry in entries:
        if entry.watermark is not None and entry.watermark > match["at"]:
            break
        if (rule.id, match["version"]) not in {(each["id"], each["version"]) for each in entry.facts["rules"]}:
            begun = None
        elif begun is None:
            begun = entry
    if begun is None or begun.number == entries[0].number:
        return None
    moved_here = f"{rule.id}@{match['version']}" in begun.facts.get("moves", {}).values()
    is_folded = rule.id in begun.facts.get("warm", {}).get("rules", ())
    return None if moved_here or is_folded else begun.watermark


def rule_that_ran(site: StateLocation, rule: str, version: str) -> Rule | None:
    """A rule of a version with the parameters and lists that it had, as any task that ran it noted them."""
    for journal in dict.fromkeys(plan.topics.journal for plan in site.plans):
        for partition in range(site.partitions):
            for entry in rule_entries(site.log, TopicPartition(journal, partition)):
                for each in entry.facts["rules"]:
                    if (each["id"], each["version"]) == (rule, version):
                        with suppress(Refused):  # it means something else by now
                            return rule_of(from_wire(PublishedRule, each))
    return None


def rule_entries(log: Log, at: TopicPartition) -> Iterator[JournalEntry]:
    """The entries of a journal that say which rules are at work, without those that a rewind took back."""
    known = log.topics([at.topic]).get(at.topic)
    if known is None or at.partition >= known.partitions:
        return iter(())
    found: list[JournalEntry] = []
    for records in read_all(log, at):
        rows = {row for kind in KINDS for row in containing(records.values, kind).tolist()}
        values = (records.value(row) for row in sorted(rows))
        found += [unpack_entry(value) for value in values if value is not None]
    return (entry for entry in standing(found) if entry.kind == "rules")
