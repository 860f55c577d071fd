"""The rulebook of a service: what was published, folded from the rules topic.

As long as nothing was published there is no rulebook, and the rules are those of the service file's folder. The first
change of all writes them down as number 1 of each (`seed`), and from then on the rulebook is what counts: the folder
is read no more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from samovar.changelog.formats.journal import EntryKind, JournalEntry, effective_entries
from samovar.changelog.formats.rules_topic import AT_WORK, QUARANTINED, Change, RuleRecord, read_changes
from samovar.changelog.log import Log, TopicPartition
from samovar.service.config.models import ServiceFile


@dataclass(frozen=True, kw_only=True)
class RuleEntry(RuleRecord):
    """A rule as a change left it. `number` is its label, `version` the hash of all that affects its matches."""

    author: str
    note: str
    at_ms: int
    change: int
    act: str

    def to_json(self) -> dict[str, Any]:
        shown = ("name", "number", "version", "status", "author", "note", "at_ms", "change", "act")
        return {name: getattr(self, name) for name in shown}


@dataclass(frozen=True)
class RuleRegistry:
    """All that was published. `entries` are the rules of now, in the order in which they first came."""

    changes: tuple[Change, ...]
    entries: tuple[RuleEntry, ...]
    lists: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    source: tuple[ServiceFile, Log] | None = field(default=None, repr=False, compare=False)

    def __reduce__(self) -> tuple[Any, ...]:
        """To another process, as Spark's, go what was published and not the way to the log."""
        return RuleRegistry, (self.changes, self.entries, self.lists)

    @property
    def change(self) -> int:
        """The number of the last change; 0 where nothing was published."""
        return len(self.changes)

    @property
    def live(self) -> tuple[RuleEntry, ...]:
        """The rules that run, those in shadow too."""
        return tuple(entry for entry in self.entries if entry.status in AT_WORK)

    @property
    def quarantined(self) -> tuple[RuleEntry, ...]:
        """The rules that tasks took out; each entry's note says why."""
        return tuple(entry for entry in self.entries if entry.status == QUARANTINED)

    def entry(self, name: str) -> RuleEntry | None:
        return next((entry for entry in self.entries if entry.name == name), None)

    def history(self, name: str) -> tuple[RuleEntry, ...]:
        """All entries of a rule, the oldest first."""
        return tuple(_entry(change, rule) for change in self.changes for rule in change.rules if rule.name == name)

    def took_effect(self, name: str, number: int) -> Mapping[int, Mapping[str, int]] | None:
        """Where an entry came in, as the journals say: partition to the offset of each stream; None while nowhere."""
        from samovar.tasks.replay.rebuild import entries_of  # noqa: PLC0415 - it loads all that runs rules

        entry = next((entry for entry in self.history(name) if entry.number == number), None)
        if entry is None or self.source is None:
            return None
        settings, log = self.source
        topic = self._journals.get(name, settings.journal.topic)
        known = log.topics([topic]).get(topic)
        found: dict[int, Mapping[str, int]] = {}
        for partition in range(0 if known is None else known.partitions):
            entries = effective_entries(entries_of(log, TopicPartition(topic, partition)))
            first = next((each for each in entries if each.kind == EntryKind.RULES and _is_at_work(entry, each)), None)
            if first is not None:
                found[partition] = dict(first.inputs)
        return found or None

    @cached_property
    def _journals(self) -> dict[str, str]:
        """Rule to the journal of its stage."""
        from samovar.service.topology.plans import rule_plans  # noqa: PLC0415 - it needs rulebooks itself
        from samovar.service.topology.topics import counted_topics, partitions_of  # noqa: PLC0415 - as above

        assert self.source is not None
        settings, log = self.source
        plans = rule_plans(settings, partitions_of(settings, log.topics(counted_topics(settings))))
        return {rule.id: plan.topics.journal for plan in plans for rule in plan.rules}


def _is_at_work(entry: RuleEntry, journaled: JournalEntry) -> bool:
    """Whether a journal entry is at or after a rule's; rules of the folder were at work before they were published."""
    if journaled.facts.get("change", 0) >= entry.change:
        return True
    rules = [(rule["id"], rule["version"]) for rule in journaled.facts["rules"]]
    return entry.act == "seed" and (entry.name, entry.version) in rules


def load_registry(settings: ServiceFile, log: Log) -> RuleRegistry:
    """What was published by now; an empty one where nothing was."""
    return folded(read_changes(log, settings.service), settings, log)


def folded(changes: list[Change], settings: ServiceFile, log: Log | None = None) -> RuleRegistry:
    entries: dict[str, RuleEntry] = {}
    lists: dict[str, tuple[Any, ...]] = {}
    for change in changes:
        entries |= {rule.name: _entry(change, rule) for rule in change.rules}
        lists |= {name: tuple(each.items) for name, each in change.lists.items()}
    registry = RuleRegistry(tuple(changes), tuple(entries.values()), lists)
    return registry if log is None else replace(registry, source=(with_registry(settings, registry), log))


def _entry(change: Change, rule: RuleRecord) -> RuleEntry:
    made: dict[str, Any] = {"author": change.author, "note": change.note, "at_ms": change.at_ms, "act": change.act}
    return RuleEntry(**vars(rule), **made, change=change.number)


def with_published_rules(settings: ServiceFile, log: Log) -> ServiceFile:
    """The service file together with what was published since; as it is, where nothing was."""
    return with_registry(settings, load_registry(settings, log))


def with_registry(settings: ServiceFile, registry: RuleRegistry) -> ServiceFile:
    return settings.with_attached(registry) if registry.change else settings


def registry_of(settings: ServiceFile) -> RuleRegistry | None:
    """What was published, where the log was asked for it (`with_published_rules`)."""
    return settings.attached if isinstance(settings.attached, RuleRegistry) else None
