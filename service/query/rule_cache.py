"""The rules of a service as the HTTP process knows them: loaded once, and again when one was published or changed.

What a rule file has wrong does not stop anybody from looking at alerts and keys: the rules that loaded last stay.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from samovar.changelog.cursors import read_all
from samovar.changelog.formats import rules_topic
from samovar.changelog.formats.journal import EntryKind, JournalEntry, effective_entries, unpack_entry
from samovar.changelog.log import Log, TopicPartition
from samovar.changelog.partitioner import key_text, partition_of
from samovar.common.errors import LogUnavailable, Refused
from samovar.common.suggest import did_you_mean
from samovar.common.wire import from_wire
from samovar.patterns.rulefile.rule_file import load_text
from samovar.patterns.semantics.versioning import version_of
from samovar.patterns.syntax.tree import Rule
from samovar.service.config.models import ServiceFile
from samovar.service.query.row_filters import containing
from samovar.service.topology.rule_registry import RuleEntry, RuleRegistry, registry_of
from samovar.service.topology.stages import stage_of
from samovar.service.topology.stores import StateLocation, site_of
from samovar.tasks.input.repartition_sink import ONE_KEY
from samovar.tasks.model.plan import MAIN, PublishedRule
from samovar.tasks.rules.migration import rule_of

LOOK_EVERY_S = 1.0
OLD_S = 5.0  # a look that is older is waited for
KINDS = (b'"kind":"rules"', b'"kind":"rewind"')  # of entries that say which rules are at work


@dataclass(frozen=True, kw_only=True)
class LoadedRules:
    """Rules, their versions and stages, and what kept newer ones from loading."""

    site: StateLocation | None
    rules: Mapping[str, Rule] = field(default_factory=dict)
    texts: Mapping[str, PublishedRule] = field(default_factory=dict)
    stages: Mapping[str, str] = field(default_factory=dict)
    registry: RuleRegistry | None = None
    problem: str | None = None
    _parsed: dict[str, Rule | None] = field(default_factory=dict, compare=False)  # earlier versions

    def version(self, rule: str) -> str | None:
        return self.texts[rule].version if rule in self.texts else None

    def of_version(self, rule: str, version: str) -> Rule | None:
        """A rule of a version: the one of now, or one that was at work before, with the parameters and lists it had."""
        if self.version(rule) == version:
            return self.rules.get(rule)
        if version not in self._parsed:
            entries = () if self.registry is None else self.registry.history(rule)
            entry = next((each for each in entries if each.version == version), None)
            found = None if entry is None else load_text(entry.text).rule
            if (found is None or version_of(found) != version) and self.site is not None:
                found = rule_that_ran(self.site, rule, version) or found
            self._parsed[version] = found
        return self._parsed[version]

    def entry(self, rule: str) -> RuleEntry | None:
        return None if self.registry is None else self.registry.entry(rule)


class RuleCache:
    """Gives the rules as they are now."""

    def __init__(self, settings: ServiceFile, log: Log) -> None:
        self._settings, self._log = settings, log
        self._lock = threading.Lock()
        self._loaded = LoadedRules(site=None)
        self._print: object = None
        self._looked_s = -math.inf
        self._change = self._known_change = object()  # what was published here last, and what the last look knew of

    def get(self) -> LoadedRules:
        """Where the last look is not long ago, the next one is taken in a thread, and nobody waits for it. What was
        published here is waited for, also where a look is under way that began before it.
        """
        age_s = time.monotonic() - self._looked_s
        if self._must_look():
            with self._lock:
                if self._must_look():
                    self._poll()
        elif age_s > LOOK_EVERY_S and self._lock.acquire(blocking=False):
            threading.Thread(target=self._poll_and_release, name="rules", daemon=True).start()
        return self._loaded

    def _must_look(self) -> bool:
        return self._known_change is not self._change or time.monotonic() - self._looked_s > OLD_S

    def look_again(self) -> None:
        """The next one who asks gets what was published a moment ago."""
        self._change = object()

    def close(self) -> None:
        """Wait for a look that is under way, and begin no other one."""
        with self._lock:
            self._looked_s, self._known_change = math.inf, self._change

    def _poll_and_release(self) -> None:
        try:
            with suppress(LogUnavailable, Refused, OSError):  # anyone who asks when the last look is old hears of it
                self._poll()
        finally:
            self._lock.release()

    def _poll(self) -> None:
        before, self._looked_s = self._looked_s, time.monotonic()
        change = self._change
        try:
            # What the rules depend on: the files, and what was published since.
            at = TopicPartition(rules_topic.topic_of(self._settings.service), 0)
            published = self._log.bounds([at])[at].end if at.topic in self._log.topics([at.topic]) else 0
            files = [(str(file), file.stat().st_mtime_ns) for path in self._settings.rules for file in _files(path)]
            found = files, published
            if found != self._print:
                self._loaded, self._print = self._load(), found
            self._known_change = change
        except BaseException:
            self._looked_s = before
            raise

    def site(self) -> StateLocation:
        found = self.get()
        if found.site is None:
            marked = any(stream.pii for stream in self._settings.streams.values())  # a problem quotes lines of rules
            detail = "" if marked else found.problem or ""
            raise Refused("rule-errors", "the rules have errors", "`samovar rules check` shows them", detail)
        return found.site

    def rule(self, name: str) -> Rule:
        rules = self.get().rules
        if name not in rules:
            hint = did_you_mean(name, rules) or "GET /api/v1/rules lists them."
            raise Refused("unknown-rule", f"there is no rule `{name[:80]}`", hint)
        return rules[name]

    def _load(self) -> LoadedRules:
        try:
            site = site_of(self._settings, self._log)
        except Refused as refused:
            return replace(self._loaded, problem=str(refused))
        rules, texts, stages = {}, {}, {}
        for plan in site.plans:
            for each, text in zip(plan.program.rules, plan.rules, strict=True):
                rules[text.id], texts[text.id], stages[text.id] = each.rule, text, plan.stage
        return LoadedRules(site=site, rules=rules, texts=texts, stages=stages, registry=registry_of(site.settings))


def _files(path: Path) -> list[Path]:
    if path.is_dir():
        return sorted(file for file in path.rglob("*") if file.suffix in (".yml", ".yaml") and file.is_file())
    return [path] if path.exists() else []


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
    return (entry for entry in effective_entries(found) if entry.kind == EntryKind.RULES)
