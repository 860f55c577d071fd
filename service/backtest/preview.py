"""A preview of a rule: what it would have found, within seconds, exact for some keys and estimated for all.

    preview(settings, log, rule)

From a sample of the rule's keys (samples.py), where there is one; what came since is read first. Where there is none,
or it lacks more than can be read in time, from the newest records of all keys. Where the time runs out, up to there:
what it says is always of a span of event time, and right for it.
"""

from __future__ import annotations

import json
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from samovar.changelog.log import Log
from samovar.common.errors import Refused
from samovar.common.texts import counted
from samovar.native.kernel import Batch
from samovar.patterns.engine.matcher import ALL_KEYS, END_OF_TIME, KeyShare, States, step
from samovar.patterns.engine.order import NO_TIME
from samovar.patterns.explain.key_trace import iso_time
from samovar.patterns.semantics.versioning import version_of
from samovar.patterns.syntax.tree import Rule
from samovar.service.backtest import samples
from samovar.service.backtest.estimate import LEVEL, Estimate, estimate
from samovar.service.backtest.finds import DAY_MS
from samovar.service.backtest.fold import lane_of, plan_over
from samovar.service.backtest.lanes import Merge, OffsetSpan, read_lanes
from samovar.service.config.models import ServiceFile
from samovar.service.topology.stages import stage_of, streams_of
from samovar.service.topology.topics import counted_topics, partitions_of
from samovar.tasks.input.placement import checked_streams
from samovar.tasks.input.source import StreamSource

BUDGET_S = 5.0
READING = 0.5  # of the time: for what a sample lacks
DIRECT = 200_000  # records that are read where there is no sample: about as many as can be in the time
STEP_ROWS = 32_768
MOST_DAYS = 400
SHOWN_DAYS = 14

IsWanted = Callable[[], bool]


class NotWanted(Exception):
    """Nobody waits for the preview any more."""


@dataclass(frozen=True)
class DayEstimate:
    """Alerts of a day, in UTC."""

    start_ms: int
    found: Estimate


@dataclass(frozen=True, kw_only=True)
class Preview:
    """What a rule finds in a span of event time. `share` is that of the keys: 1 is all of them, and then it is exact.

    `complete`: it is of all that the inputs hold. `sampled`: it is from a sample, of which `behind` records lack.
    """

    rule: str
    version: str
    from_ms: int | None
    to_ms: int | None
    share: float
    complete: bool
    sampled: bool
    behind: int
    keys: int
    events: int
    alerts: int  # of these keys
    keys_with_alerts: int
    found: Estimate
    days: tuple[DayEstimate, ...]
    seconds: float

    def to_json(self) -> dict[str, object]:
        told = dict(vars(self)) | {"from": self.from_ms, "to": self.to_ms, "found": asdict(self.found)}
        told["days"] = [{"day": iso_time(each.start_ms)[:10], **asdict(each.found)} for each in self.days]
        told["seconds"] = round(self.seconds, 3)
        return {name: value for name, value in told.items() if name not in ("from_ms", "to_ms")}


def text_of(found: Preview, behind_hint: str = "") -> str:
    """A preview for the terminal."""
    total, exact = found.found, found.share == 1
    about = (
        "" if exact else f"about {total.count:,} alerts: {total.low:,} to {total.high:,} with {LEVEL:.0%} confidence"
    )
    lines = [
        f"{found.rule} (version {found.version})",
        f"  It finds {about or counted(total.count, 'alert')}.",
        f"  {looked_at(found)}",
    ]
    if not found.complete and behind_hint:
        lines.append(f"  {behind_hint}")
    if found.days:
        lines.append("  day            found" + ("" if exact else "   interval"))
    for day in found.days[-SHOWN_DAYS:]:
        interval = "" if exact else f"   {day.found.low:,} to {day.found.high:,}"
        lines.append(f"  {iso_time(day.start_ms)[:10]} {day.found.count:>9,}{interval}")
    if len(found.days) > SHOWN_DAYS:
        lines.append(f"  and {counted(len(found.days) - SHOWN_DAYS, 'day')} before; --json has all")
    return "\n".join(lines)


def looked_at(found: Preview) -> str:
    """What it is of, in a sentence."""
    keys = counted(found.keys, "key") if found.share == 1 else f"one key in {round(1 / found.share):,}: {found.keys:,}"
    of = "All of" if found.share == 1 else "Of"
    span = "no event" if found.from_ms is None or found.to_ms is None else ""
    span = span or f"{iso_time(found.from_ms or 0)[:19]} to {iso_time(found.to_ms or 0)[:19]}"
    what = f"{of} {keys}, {counted(found.events, 'event')}, {span}"
    return f"{what}{'' if found.complete else ', not all that there is'}; {found.seconds:.1f} s"


def preview(
    settings: ServiceFile,
    log: Log,
    rule: Rule,
    *,
    budget_s: float = BUDGET_S,
    is_wanted: IsWanted = lambda: True,
    max_share: float = 1.0,
) -> Preview:
    """Runs a rule for so long at most; of no more than a share of the keys, where there is a sample of them."""
    begun = time.monotonic()
    run = _PreviewRun(settings, log, rule, begun + budget_s * 0.9, is_wanted, max_share)
    return run.result(begun)


class _PreviewRun:
    """One preview on its way. The source of truth for what it has looked at."""

    def __init__(
        self, settings: ServiceFile, log: Log, rule: Rule, deadline: float, is_wanted: IsWanted, max_share: float
    ) -> None:
        self.settings, self.log, self.rule, self.deadline, self.is_wanted = settings, log, rule, deadline, is_wanted
        self.max_share = max_share
        known = log.topics([stream.topic for stream in settings.streams.values()])
        own = streams_of(rule, settings.streams)
        self.streams = tuple(name for name in own if settings.streams[name].topic in known)
        if not self.streams:
            hint = f"Run the service, or `samovar produce {settings.path.name}`, first."
            raise Refused("backtest-no-history", "none of the rule's topics exists, so that there is no history", hint)
        self.partitions = partitions_of(settings, log.topics(counted_topics(settings)))
        self.plan = plan_over(settings, self.streams, [rule], self.partitions)
        self.checked = set() if stage_of(rule, settings.streams, self.partitions) else checked_streams(self.plan)
        self.share, self.sampled, self.complete, self.behind = ALL_KEYS, False, True, 0
        self.hashes: list[NDArray[np.uint64]] = []
        self.events = 0
        self.first_ms: int | None = None
        self.last_ms: int | None = None
        self.per_key: Counter[bytes] = Counter()
        self.per_day: defaultdict[int, Counter[bytes]] = defaultdict(Counter)

    def is_over(self) -> bool:
        if not self.is_wanted():
            raise NotWanted
        return time.monotonic() > self.deadline

    def result(self, begun: float) -> Preview:
        found = self._samples()
        with closing(self._direct() if found is None else self._sampled(found)) as batches:
            self._match(batches)
        share = 1 / self.share.of
        days = sorted(self.per_day.items())[-MOST_DAYS:]
        return Preview(
            rule=self.rule.id,
            version=version_of(self.rule),
            from_ms=self.first_ms,
            to_ms=self.last_ms,
            share=share,
            complete=self.complete,
            sampled=self.sampled,
            behind=self.behind,
            keys=len(np.unique(np.concatenate(self.hashes))) if self.hashes else 0,
            events=self.events,
            alerts=sum(self.per_key.values()),
            keys_with_alerts=len(self.per_key),
            found=estimate(self.per_key.values(), share),
            days=tuple(DayEstimate(day * DAY_MS, estimate(counts.values(), share)) for day, counts in days),
            seconds=time.monotonic() - begun,
        )

    # ------------------------------------------------------------ events

    def _samples(self) -> list[samples.Sample] | None:
        """The samples of the rule's keys, brought up to date; none where too much lacks."""
        specs = samples.key_specs(self.rule)
        found = {keys: samples.load_sample(self.settings, self.log, keys) for keys in specs}
        if not all(specs) or any(each is None for each in found.values()):
            return None
        there = [each for each in found.values() if each is not None]
        if any(samples.left_of(self.settings, self.log, each) > DIRECT for each in there):
            self.behind = max(samples.left_of(self.settings, self.log, each) for each in there)
        else:
            end = time.monotonic() + (self.deadline - time.monotonic()) * READING

            def go_on(_done: int, _total: int) -> bool:
                self.is_over()
                return time.monotonic() < end

            try:
                there = list(samples.extend_samples(self.settings, self.log, specs, go_on).values())
            except (OSError, samples.SampleBusy):  # its files are another user's; or somebody else reads on
                self.is_over()
            self.behind = max(samples.left_of(self.settings, self.log, each) for each in there)
        return None if any(each.records < self.behind for each in there) else there

    def _sampled(self, found: Sequence[samples.Sample]) -> Generator[tuple[Batch, int], None, None]:
        """Events of the sampled keys, in order."""
        self.sampled, self.complete = True, self.behind == 0
        of = max(each.of for each in found)
        while 1 / of > self.max_share:
            of *= 2
        self.share = KeyShare(0, of)
        events = Batch(len(self.plan.fields))
        for partition, stream, records in samples.sampled_records(self.settings, found, self.share):
            if stream in self.streams:
                source = StreamSource(self.plan.inputs, self.plan.fields, partition)
                source.check_places(self.checked, None)
                batch, _, _ = source.decode(records)
                events.append(batch, np.arange(len(batch)))
                self.is_over()
        order = np.lexsort((events.offset, events.partition, events.stream, events.time))
        for first in range(0, len(order), STEP_ROWS):
            some = Batch(events.columns)
            some.append(events, order[first : first + STEP_ROWS].astype(np.int64))
            yield some, int(some.time[-1])
        yield Batch(events.columns), END_OF_TIME

    def _direct(self) -> Generator[tuple[Batch, int], None, None]:
        """The newest events of all keys, in order."""
        bounds, spans = samples.bounds_of(self.settings, self.log), []
        places = sum(name in each for each in bounds for name in self.streams)
        for partition, known in enumerate(bounds):
            start, stop = {}, {}
            for name in self.streams:
                begin, stop[name] = known.get(name, (0, 0))
                start[name] = max(begin, stop[name] - DIRECT // max(1, places))
                self.complete &= start[name] == begin
            spans.append(OffsetSpan(partition, start, stop))
        lanes = [lane_of(self.log, self.plan, span, END_OF_TIME, self.checked) for span in spans]
        merge = Merge(len(lanes), len(self.plan.fields))
        with ThreadPoolExecutor(1, "preview") as pool, closing(read_lanes(lanes, pool)) as batches:
            for found in batches:
                ordered = merge.add(found)
                if ordered is not None:
                    yield ordered

    # ------------------------------------------------------------ matches

    def _match(self, batches: Iterator[tuple[Batch, int]]) -> None:
        settings = self.settings
        states = States(
            self.plan.program,
            max_partials=settings.max_partials,
            max_events=settings.max_events,
            max_matches=settings.max_matches,
            tunables=settings.tunables,
        )
        states.only(self.share)
        specs, watermark = len(samples.key_specs(self.rule)), NO_TIME
        for events, until in batches:
            if self.is_over() and watermark > NO_TIME:
                self.complete = False
                break
            if len(events):
                self.events += len(events)
                first, self.last_ms = int(events.time[0]), int(events.time[-1])
                self.first_ms = first if self.first_ms is None else self.first_ms
                for keyspec in range(specs):
                    hashes = states.key_hashes(events, keyspec)
                    self.hashes.append(np.unique(hashes[self.share.has(hashes)]))
            watermark = until
            for key, line in step(states, events, until).records():
                day = json.loads(line)["at"] // DAY_MS
                self.per_key[key] += 1
                self.per_day[day][key] += 1
