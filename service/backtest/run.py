"""Backtests: rules over the history of a service's inputs, held against what the service found.

    found = backtest(settings, log, [text_of_a_rule], from_ms, to_ms, on_progress)
    found.to_json()

The matcher is the live one, with its order of events, its lateness and its limits: a rule that did not change finds
what it found. Reading begins before `from_ms`, by as much as the rules look back.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from samovar.changelog.log import Log, TopicPartition
from samovar.common.errors import Refused
from samovar.common.memory import free_memory
from samovar.patterns.engine.compile import RulePlan, compile_rules
from samovar.patterns.engine.matcher import END_OF_TIME
from samovar.patterns.engine.order import NO_TIME
from samovar.patterns.explain.key_trace import iso_time
from samovar.patterns.syntax.tree import Rule
from samovar.service.backtest.compare import ComparedRows, Marks, compare, marks_of
from samovar.service.backtest.current import Current, StagePosition, reached, read_between, read_current
from samovar.service.backtest.finds import DAY_MS, HOUR_MS, Finds, MatchRows
from samovar.service.backtest.fold import STATE_BYTES, Fold, FoldedMatch, Tally, plan_over, run_fold
from samovar.service.backtest.lanes import OffsetSpan
from samovar.service.backtest.rules import ANY, Group, any_variants, grouped, load_rules, warm_up_ms
from samovar.service.config.models import ServiceFile
from samovar.service.query import read
from samovar.service.topology.rule_registry import with_published_rules
from samovar.service.topology.stages import stages_of
from samovar.service.topology.topics import counted_topics, partitions_of
from samovar.tasks.input.placement import checked_streams

EXAMPLES = 3  # of each kind and rule
EXAMPLE_EVENTS = 8  # of one match
FEW_DAYS = 3  # so few are shown by the hour

OnProgress: TypeAlias = Callable[[int, int], None]  # records read, and of how many
# Runs a fold, and says how many records it has read and what it met. The local engine, or Spark's.
Engine: TypeAlias = Callable[[ServiceFile, Log, Fold, Tally, Callable[[int], None]], Iterator[FoldedMatch]]


@dataclass(frozen=True, kw_only=True)
class ExampleEvent:
    """An event of a match. `value` is None where the log no longer has it."""

    step: str
    topic: str
    partition: int
    offset: int
    value: Any


@dataclass(frozen=True)
class Example:
    """A match, some of its events, and how many it has in all."""

    match: Mapping[str, Any]
    events: tuple[ExampleEvent, ...]
    total: int

    def to_json(self) -> dict[str, Any]:
        events = [asdict(each) for each in self.events]
        return {"match": dict(self.match), "events": events, "events_total": self.total}


@dataclass(frozen=True)
class TimeBucket:
    """Alerts of a span of time that begins here."""

    start_ms: int
    found: int
    current: int


@dataclass(frozen=True, kw_only=True)
class RuleResult:
    """What one rule found, next to what the service found by the rule of that name. Fields are those of the JSON."""

    rule: Rule
    version: str
    found: int
    current: int | None  # None, as the next counts: the service has no rule of this name
    current_versions: Mapping[str, int]
    same: int | None  # moved ones too
    moved: int | None
    new: int | None
    gone: int | None
    not_compared: int  # where the service has not come yet
    days: tuple[TimeBucket, ...]  # in UTC
    labels: Marks | None
    overlap_any: Mapping[str, int] | None  # None: it is not a sequence, or has `overlap=any` already
    dropped: int
    suppressed: int
    no_key: int
    examples: Mapping[str, tuple[Example, ...]]
    hours: tuple[TimeBucket, ...]  # only where there are few days

    def to_json(self) -> dict[str, Any]:
        rule = self.rule
        head = {"rule": rule.id, "title": rule.title, "severity": rule.severity, "tags": list(rule.tags)}
        document: dict[str, Any] = head | {
            name: value for name, value in vars(self).items() if name not in ("rule", "hours")
        }
        document["days"] = [
            {"day": iso_time(each.start_ms)[:10], "found": each.found, "current": each.current} for each in self.days
        ]
        document["labels"] = None if self.labels is None else asdict(self.labels)
        document["examples"] = {kind: [each.to_json() for each in some] for kind, some in self.examples.items()}
        return document


@dataclass(frozen=True, kw_only=True)
class Backtest:
    """What rules would have found from one moment to another."""

    service: str
    engine: str
    from_ms: int | None  # None: the beginning of the inputs
    to_ms: int
    rules: tuple[RuleResult, ...]
    tally: Tally
    seconds: float
    notes: tuple[str, ...] = ()

    @property
    def events_per_s(self) -> float:
        return self.tally.totals.records / self.seconds if self.seconds else 0.0

    def to_json(self) -> dict[str, Any]:
        totals = self.tally.totals
        return {
            "service": self.service,
            "engine": self.engine,
            "from": self.from_ms,
            "to": self.to_ms,
            "events": totals.records,
            "dead": totals.dead,
            "late": totals.late,
            "seconds": round(self.seconds, 3),
            "events_per_s": round(self.events_per_s),
            "notes": list(self.notes),
            "rules": [each.to_json() for each in self.rules],
        }


def run_here(
    settings: ServiceFile, log: Log, fold: Fold, tally: Tally, on_events: Callable[[int], None]
) -> Iterator[FoldedMatch]:
    """The local engine, on all cores that this process may use."""
    return run_fold(settings, log, fold, tally, on_events, len(os.sched_getaffinity(0)))


@dataclass(frozen=True, kw_only=True)
class BacktestOptions:
    """How to run a backtest, beyond what it is of."""

    overlap_any: bool = True
    examples: int = EXAMPLES
    state_bytes: int = STATE_BYTES
    engine: str = "local"
    run: Engine = run_here


def state_bytes(gib: float | None = None) -> int:
    """What states may take in memory, where the backtest has the machine for itself: half of what is free."""
    return max(STATE_BYTES, (free_memory() or 0) // 2) if gib is None else int(gib * (1 << 30))


def backtest(
    settings: ServiceFile,
    log: Log,
    rules: Sequence[str | Path | Rule],
    from_ms: int | None,
    to_ms: int | None,
    on_progress: OnProgress = lambda _done, _total: None,
    asked: BacktestOptions | None = None,
) -> Backtest:
    """Runs rules (files, folders, texts) over history, in event time from one moment up to, not including, another."""
    if from_ms is not None and to_ms is not None and from_ms >= to_ms:
        raise Refused("backtest-times", "it would begin after it ends", "Give --from an earlier time than --to.")
    begun = time.monotonic()
    loaded = load_rules(with_published_rules(settings, log), rules)
    topics = [stream.topic for stream in settings.streams.values()]
    known = log.topics(topics)
    for topic in topics:
        if topic not in known:
            hint = f"Run the service, or `samovar produce {settings.path.name}`, first."
            raise Refused("backtest-no-history", f"the topic {topic} does not exist, so that there is no history", hint)
    partitions = partitions_of(settings, log.topics(counted_topics(settings)))
    run = _BacktestRun(
        settings=settings,
        log=log,
        rules=loaded,
        from_ms=from_ms,
        to_ms=to_ms,
        asked=asked or BacktestOptions(),
        partitions=partitions,
    )
    return run.run(on_progress, begun)


@dataclass(kw_only=True)
class _BacktestRun:
    """One backtest: what it is over, and what it met so far."""

    settings: ServiceFile
    log: Log
    rules: tuple[Rule, ...]
    from_ms: int | None
    to_ms: int | None
    asked: BacktestOptions
    partitions: int
    tally: Tally = field(default_factory=Tally)
    notes: list[str] = field(default_factory=list)

    def run(self, on_progress: OnProgress, begun: float) -> Backtest:
        groups = grouped(self.settings, self.rules, self.partitions)
        fold = self._fold(groups)
        total, done = fold.records, 0

        def on_events(records: int) -> None:
            nonlocal done
            done += records
            on_progress(done, total)

        with closing(Finds()) as finds, closing(Finds()) as before:
            for match in self.asked.run(self.settings, self.log, fold, self.tally, on_events):
                finds.add(match)
            begin_ms = NO_TIME if self.from_ms is None else self.from_ms
            end_ms = self.tally.max_event_time + 1 if self.to_ms is None else self.to_ms
            names = {rule.id for rule in self.rules}
            apart = {rule.id for group in groups if group.apart for rule in group.rules}
            current = read_current(self.log, self.settings, names, apart, (begin_ms, end_ms), before)
            stages: dict[str, StagePosition] = {}
            for stage in stages_of(self.rules, self.settings.streams, self.partitions):
                changelog = self.settings.changelog.topic + (f"-{stage.name}" if stage.name else "")
                stages |= dict.fromkeys((rule.id for rule in stage.rules), reached(self.log, changelog))
            results = []
            for plan in compile_rules(self.rules).rules:
                name = plan.rule.id
                found, alerts = finds.rows(name, begin_ms, end_ms), before.rows(name, begin_ms, end_ms)
                is_known = name in stages[name].rules or len(alerts) > 0
                compared = compare(found, alerts, stages[name].times) if is_known else None
                variant = finds.rows(name + ANY, begin_ms, end_ms)
                results.append(self._result(plan, finds, found, current, alerts, compared, variant))
        if current.unreadable:
            self.notes.append(f"{current.unreadable:,} records of {self.settings.alerts.topic} are not alerts")
        service, seconds = self.settings.service, time.monotonic() - begun
        notes = tuple(self.notes)
        return Backtest(
            service=service,
            engine=self.asked.engine,
            from_ms=self.from_ms,
            to_ms=end_ms,
            rules=tuple(results),
            tally=self.tally,
            seconds=seconds,
            notes=notes,
        )

    def _fold(self, groups: Sequence[Group]) -> Fold:
        """What is read for all groups of rules."""
        rules = [rule for group in groups for rule in group.rules]
        wanted = {name for group in groups for name in group.streams}
        spans = []
        for partition in range(self.partitions):
            start, stop = {}, {}
            for name, stream in self.settings.streams.items():
                if name not in wanted:
                    continue
                at = TopicPartition(stream.topic, partition)
                begin, end = self.log.bounds([at])[at]
                start[name], stop[name] = begin, end
                if self.from_ms is not None:
                    # No event after it is missed: event time is ahead of the log's by a bounded amount.
                    back_ms = max(map(warm_up_ms, rules)) + stream.slack_ms + stream.max_future_skew_ms
                    first = self.log.offset_at(at, max(0, self.from_ms - back_ms))
                    start[name] = min(end, max(begin, first))
                    if start[name] == begin > 0:
                        self.notes.append(f"{at} begins at offset {begin:,}: what was before is no more there")
            spans.append(OffsetSpan(partition, start, stop))
        apart = [rule for group in groups if group.apart for rule in group.rules]
        checked = checked_streams(plan_over(self.settings, self.settings.streams, apart, self.partitions))
        if self.asked.overlap_any:
            groups = [replace(each, rules=(*each.rules, *any_variants(each.rules))) for each in groups]
        return Fold(
            groups=tuple(groups),
            spans=tuple(spans),
            until_ms=END_OF_TIME if self.to_ms is None else self.to_ms,
            state_bytes=self.asked.state_bytes,
            placed_in=self.partitions,
            checked=frozenset(checked),
        )

    def _result(
        self,
        plan: RulePlan,
        finds: Finds,
        found: MatchRows,
        current: Current,
        alerts: MatchRows,
        compared: ComparedRows | None,
        variant: MatchRows,
    ) -> RuleResult:
        rule, name, tally, most = plan.rule, plan.rule.id, self.tally, self.asked.examples
        days = _buckets(found, alerts, DAY_MS)
        if compared is None:
            chosen = {"found": finds.some(found, most)}
        else:
            chosen = {"new": finds.some(compared.new, most), "gone": current.finds.some(compared.gone, most)}
        overlap_any = None
        if self.asked.overlap_any and any_variants([rule]):
            more = variant[~np.isin(variant["moment"], found["moment"])]
            overlap_any = {"more": len(more), "dropped": tally.dropped[name + ANY]}
            if len(more):
                chosen["overlap_any"] = finds.some(more, most)
        return RuleResult(
            rule=rule,
            version=plan.version,
            found=len(found),
            current=None if compared is None else len(alerts),
            current_versions=dict(current.versions.get(name, {})),
            same=None if compared is None else compared.same,
            moved=None if compared is None else compared.moved,
            new=None if compared is None else len(compared.new),
            gone=None if compared is None else len(compared.gone),
            not_compared=len(found) if compared is None else compared.ahead,
            days=days,
            labels=marks_of(compared) if compared is not None and current.labelled else None,
            overlap_any=overlap_any,
            dropped=tally.dropped[name],
            suppressed=tally.suppressed[name],
            no_key=tally.no_key[name],
            examples={kind: tuple(_with_events(self.log, self.settings, some)) for kind, some in chosen.items()},
            hours=_buckets(found, alerts, HOUR_MS) if len(days) <= FEW_DAYS else (),
        )


def _buckets(found: MatchRows, current: MatchRows, every_ms: int) -> tuple[TimeBucket, ...]:
    counts: dict[int, dict[str, int]] = {}
    for name, rows in (("found", found), ("current", current)):
        places, sizes = np.unique(rows["at"] // every_ms, return_counts=True)
        for place, size in zip(places.tolist(), sizes.tolist(), strict=True):
            counts.setdefault(place * every_ms, {"found": 0, "current": 0})[name] = size
    return tuple(TimeBucket(start, **count) for start, count in sorted(counts.items()))


def _with_events(log: Log, settings: ServiceFile, matches: Sequence[Mapping[str, Any]]) -> Iterator[Example]:
    """Each match with its events, in the order of its steps; of many the first and the last."""
    readable = read.readable_by(settings)
    for match in matches:
        places = [(step, place) for step, listed in match["steps"].items() for place in listed]
        half = EXAMPLE_EVENTS // 2
        shown = places if len(places) <= EXAMPLE_EVENTS else [*places[:half], *places[-half:]]
        events = []
        for step, (topic, partition, offset) in shown:
            at = TopicPartition(topic, partition)
            begin, end = log.bounds([at])[at]
            found = read_between(log, at, offset, offset + 1) if begin <= offset < end else ()
            record = next((each for records in found for each in read.rows(records) if each.offset == offset), None)
            value = None if record is None else read.field("value", readable(record).value, unpack=True).get("value")
            events.append(ExampleEvent(step=step, topic=topic, partition=partition, offset=offset, value=value))
        yield Example(match, tuple(events), len(places))
