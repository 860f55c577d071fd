"""Backtests: rules over the history of a service's inputs, held against what the service found.

    found = backtest(settings, log, [text_of_a_rule], from_ms, to_ms, on_progress)
    found.to_json()

The matcher is the live one, with its order of events, its lateness and its limits: a rule that did not change finds
what it found. Reading begins before `from_ms`, by as much as the rules look back.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from samovar.changelog.log import Log, TopicPartition
from samovar.common.errors import Refused
from samovar.patterns.engine.compile import compile_rules
from samovar.patterns.engine.matcher import END_OF_TIME
from samovar.patterns.engine.order import NO_TIME
from samovar.patterns.explain.key_trace import iso_time
from samovar.patterns.syntax.tree import Rule
from samovar.service.backtest.compare import ComparedRows, Marks, compare, marks_of
from samovar.service.backtest.current import Current, StagePosition, reached, read_current
from samovar.service.backtest.examples import Example, with_events
from samovar.service.backtest.finds import DAY_MS, HOUR_MS, Finds, MatchColumns
from samovar.service.backtest.fold import STATE_BYTES, Fold, FoldedMatch, Tally, run_fold
from samovar.service.backtest.lanes import OffsetSpan
from samovar.service.backtest.rules import ANY, Group, grouped, load_rules, warm_up_ms, with_any
from samovar.service.config.models import ServiceFile
from samovar.service.topology.rule_registry import with_rulebook
from samovar.service.topology.stages import stages_of
from samovar.service.topology.topics import counted_topics, partitions_of

EXAMPLES = 3  # of each kind and rule
FEW_DAYS = 3  # so few are shown by the hour

OnProgress: TypeAlias = Callable[[int, int], None]  # records read, and of how many
# Runs folds, and says how many records it has read and what it met. The local engine, or Spark's.
Engine: TypeAlias = Callable[[ServiceFile, Log, Sequence[Fold], Tally, Callable[[int], None]], Iterator[FoldedMatch]]


@dataclass(frozen=True)
class TimeBucket:
    """Alerts of a stretch of time that begins here."""

    start_ms: int
    found: int
    current: int


@dataclass(frozen=True)
class RuleResult:
    """What one rule found, next to what the service found by the rule of that name."""

    rule: Rule
    version: str
    found: int
    current: int
    compared: ComparedRows | None  # None: the service has no rule of this name
    versions: Mapping[str, int]
    days: tuple[TimeBucket, ...]  # in UTC
    hours: tuple[TimeBucket, ...]  # only where there are few days
    marks: Marks | None
    any_more: int | None  # None: it is not a sequence, or has `overlap=any` already
    any_dropped: int
    dropped: int
    suppressed: int
    no_key: int
    examples: Mapping[str, tuple[Example, ...]]

    @property
    def is_known(self) -> bool:
        return self.compared is not None

    def to_json(self) -> dict[str, Any]:
        compared = self.compared
        return {
            "rule": self.rule.id,
            "title": self.rule.title,
            "severity": self.rule.severity,
            "tags": list(self.rule.tags),
            "version": self.version,
            "found": self.found,
            "current": self.current if compared else None,
            "current_versions": dict(self.versions),
            "same": compared.same if compared else None,
            "moved": compared.moved if compared else None,
            "new": len(compared.new) if compared else None,
            "gone": len(compared.gone) if compared else None,
            "not_compared": compared.ahead if compared else self.found,
            "days": [_count_json(each) for each in self.days],
            "labels": None if self.marks is None else _marks_json(self.marks),
            "overlap_any": None if self.any_more is None else {"more": self.any_more, "dropped": self.any_dropped},
            "dropped": self.dropped,
            "suppressed": self.suppressed,
            "no_key": self.no_key,
            "examples": {kind: [each.to_json() for each in some] for kind, some in self.examples.items()},
        }


def _count_json(count: TimeBucket) -> dict[str, Any]:
    return {"day": iso_time(count.start_ms)[:10], "found": count.found, "current": count.current}


def _marks_json(marks: Marks) -> dict[str, Any]:
    return {
        "precision": marks.precision,
        "recall": marks.recall,
        "precision_before": marks.precision_before,
        "confirmed": marks.confirmed,
        "false_alarms": marks.false_alarms,
        "confirmed_kept": marks.confirmed_kept,
        "false_alarms_kept": marks.false_alarms_kept,
        "unlabelled": marks.unlabelled,
    }


@dataclass(frozen=True)
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

    def to_json(self) -> dict[str, Any]:
        rate = self.tally.events / self.seconds if self.seconds else 0.0
        return {
            "service": self.service,
            "engine": self.engine,
            "from": self.from_ms,
            "to": self.to_ms,
            "events": self.tally.events,
            "dead": self.tally.dead,
            "late": self.tally.late,
            "seconds": round(self.seconds, 3),
            "events_per_s": round(rate),
            "notes": list(self.notes),
            "rules": [each.to_json() for each in self.rules],
        }


@dataclass(frozen=True)
class BacktestOptions:
    """How to run a backtest, beyond what it is of."""

    overlap_any: bool = True
    examples: int = EXAMPLES
    state_bytes: int = STATE_BYTES
    engine: str = "local"
    run: Engine | None = None  # None: here


def backtest(
    settings: ServiceFile,
    log: Log,
    rules: Sequence[str | Path | Rule],
    from_ms: int | None,
    to_ms: int | None,
    on_progress: OnProgress = lambda _done, _total: None,
    asked: BacktestOptions | None = None,
) -> Backtest:
    """Run rules (files, folders, texts) over history, in event time from one moment up to, not including, another."""
    asked = asked or BacktestOptions()
    if from_ms is not None and to_ms is not None and from_ms >= to_ms:
        raise Refused("backtest-times", "it would begin after it ends", "Give --from an earlier time than --to.")
    begun = time.monotonic()
    loaded = load_rules(with_rulebook(settings, log), rules)
    return _Running(settings, log, loaded, from_ms, to_ms, asked).run(on_progress, begun)


@dataclass
class _Running:
    """A backtest on its way."""

    settings: ServiceFile
    log: Log
    rules: tuple[Rule, ...]
    from_ms: int | None
    to_ms: int | None
    asked: BacktestOptions
    tally: Tally = field(default_factory=Tally)
    notes: list[str] = field(default_factory=list)

    def run(self, on_progress: OnProgress, begun: float) -> Backtest:
        self.partitions = self._partitions()
        groups = grouped(self.settings, self.rules, self.partitions)
        folds = [fold for group in groups for fold in self._folds(group)]
        with closing(Finds()) as finds, closing(Finds()) as before:
            self._find(folds, finds, on_progress)
            end_ms = self.to_ms if self.to_ms is not None else self.tally.largest + 1
            apart = {rule.id for group in groups if group.apart for rule in group.rules}
            names = {rule.id for rule in self.rules}
            current = read_current(self.log, self.settings, names, apart, (self._begin_ms(), end_ms), before)
            results = self._results(finds, current, end_ms)
        self._note(current)
        spent = time.monotonic() - begun
        return Backtest(
            self.settings.service,
            self.asked.engine,
            self.from_ms,
            end_ms,
            results,
            self.tally,
            spent,
            tuple(self.notes),
        )

    def _begin_ms(self) -> int:
        return NO_TIME if self.from_ms is None else self.from_ms

    # ------------------------------------------------------------ what is read

    def _partitions(self) -> int:
        topics = [stream.topic for stream in self.settings.streams.values()]
        known = self.log.topics(topics)
        for topic in topics:
            if topic not in known:
                raise Refused(
                    "backtest-no-history",
                    f"the topic {topic} does not exist, so that there is no history",
                    f"Run the service, or `samovar produce {self.settings.path.name}`, first.",
                )
        return partitions_of(self.settings, self.log.topics(counted_topics(self.settings)))

    def _folds(self, group: Group) -> Iterator[Fold]:
        rules = with_any(group.rules) if self.asked.overlap_any else group.rules
        stretches = tuple(self._stretch(group, partition) for partition in range(self.partitions))
        until_ms = END_OF_TIME if self.to_ms is None else self.to_ms
        placed_in = self.partitions if group.apart else 1
        for part in [(each,) for each in stretches] if group.apart else [stretches]:
            yield Fold(rules, group.streams, part, until_ms, self.asked.state_bytes, placed_in)

    def _stretch(self, group: Group, partition: int) -> OffsetSpan:
        start, stop = {}, {}
        for stream in group.streams:
            at = TopicPartition(self.settings.streams[stream].topic, partition)
            bounds = self.log.bounds([at])[at]
            start[stream] = min(bounds.end, max(bounds.begin, self._first_offset(group, stream, at, bounds.begin)))
            stop[stream] = bounds.end
            if self.from_ms is not None and start[stream] == bounds.begin > 0:
                self.notes.append(f"{at} begins at offset {bounds.begin:,}: what was before is no more there")
        return OffsetSpan(partition, start, stop)

    def _first_offset(self, group: Group, stream: str, at: TopicPartition, begin: int) -> int:
        """No event after it is missed: event time is ahead of the log's by a bounded amount."""
        if self.from_ms is None:
            return begin
        spec = self.settings.streams[stream]
        back_ms = max(map(warm_up_ms, group.rules)) + spec.slack_ms + spec.max_future_skew_ms
        return self.log.offset_at(at, max(0, self.from_ms - back_ms))

    def _find(self, folds: Sequence[Fold], finds: Finds, on_progress: OnProgress) -> None:
        total, done = sum(fold.records for fold in folds), 0

        def moved(records: int) -> None:
            nonlocal done
            done += records
            on_progress(done, total)

        run = self.asked.run or run_here
        for found in run(self.settings, self.log, folds, self.tally, moved):
            finds.add(found)

    # ------------------------------------------------------------ what it gives

    def _results(self, finds: Finds, current: Current, end_ms: int) -> tuple[RuleResult, ...]:
        program = compile_rules(self.rules)
        stages = self._stages()
        results = []
        for plan in program.rules:
            found, before, variant = (
                rows.between(self._begin_ms(), end_ms)
                for rows in (finds.of(plan.rule.id), current.finds.of(plan.rule.id), finds.of(plan.rule.id + ANY))
            )
            stage = stages[plan.rule.id]
            is_known = plan.rule.id in stage.rules or len(before) > 0
            compared = compare(found, before, stage.times) if is_known else None
            results.append(self._result(plan.rule, plan.version, found, before, variant, compared, current))
        return tuple(results)

    def _stages(self) -> dict[str, StagePosition]:
        """How far the stage of each rule has come."""
        found: dict[str, StagePosition] = {}
        for stage in stages_of(self.rules, self.settings.streams, self.partitions):
            changelog = self.settings.changelog.topic + (f"-{stage.name}" if stage.name else "")
            found |= dict.fromkeys((rule.id for rule in stage.rules), reached(self.log, changelog))
        return found

    def _result(
        self,
        rule: Rule,
        version: str,
        found: MatchColumns,
        before: MatchColumns,
        variant: MatchColumns,
        compared: ComparedRows | None,
        current: Current,
    ) -> RuleResult:
        more = variant.where(_not_in(variant, found)) if _has_variant(rule, self.asked) else None
        chosen = {"found": found} if compared is None else {"new": compared.new, "gone": compared.gone}
        if more is not None and len(more):
            chosen["overlap_any"] = more
        counted, days = self.tally, _counts(found, before, DAY_MS)
        return RuleResult(
            rule,
            version,
            len(found),
            len(before),
            compared,
            current.versions.get(rule.id, {}),
            days,
            _counts(found, before, HOUR_MS) if len(days) <= FEW_DAYS else (),
            marks_of(compared) if compared is not None and current.labelled else None,
            None if more is None else len(more),
            counted.dropped.get(rule.id + ANY, 0),
            counted.dropped.get(rule.id, 0),
            counted.suppressed.get(rule.id, 0),
            counted.no_key.get(rule.id, 0),
            {
                kind: tuple(with_events(self.log, self.settings, rows.lines(self.asked.examples)))
                for kind, rows in chosen.items()
            },
        )

    def _note(self, current: Current) -> None:
        if current.unreadable:
            self.notes.append(f"{current.unreadable:,} records of {self.settings.alerts.topic} are not alerts")


def run_here(
    settings: ServiceFile, log: Log, folds: Sequence[Fold], tally: Tally, on_events: Callable[[int], None]
) -> Iterator[FoldedMatch]:
    """The local engine: one fold after the other."""
    for fold in folds:
        yield from run_fold(settings, log, fold, tally, on_events)


def _has_variant(rule: Rule, asked: BacktestOptions) -> bool:
    return asked.overlap_any and len(with_any([rule])) > 1


def _not_in(rows: MatchColumns, others: MatchColumns) -> NDArray[np.bool_]:
    return ~np.isin(rows["moment"], others["moment"])


def _counts(found: MatchColumns, current: MatchColumns, every_ms: int) -> tuple[TimeBucket, ...]:
    here, there = found.counts(every_ms), current.counts(every_ms)
    return tuple(TimeBucket(start, here.get(start, 0), there.get(start, 0)) for start in sorted({*here, *there}))
