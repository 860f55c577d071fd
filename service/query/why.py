"""Why a rule did or did not fire for a key: its events, run through the rule once more, with what each did.

An alert is explained by a run that finds it again: the same rule version over the same events in the same order, event
time moved to where the alert was raised, and as many earlier events as it takes. That it is the same one, its id says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias, TypeVar

import numpy as np

from samovar.common.times import duration_text
from samovar.native.kernel import Batch, Int64s, Other, joined
from samovar.patterns.engine.compile import Program, compile_rules
from samovar.patterns.engine.matcher import Matches, States, step
from samovar.patterns.engine.replay import EventReplay, gathered
from samovar.patterns.explain.key_trace import KeyTrace, Names, follow, follow_from, iso_time, listed
from samovar.patterns.explain.why import explain
from samovar.patterns.semantics.versioning import reach_ms
from samovar.patterns.syntax.tree import Rule, Scalar
from samovar.service.alerts.index import Alert
from samovar.service.config.models import ServiceFile
from samovar.service.masking.fields import Masks
from samovar.service.query.context import QueryContext
from samovar.service.query.events import StreamEvent
from samovar.service.query.lookback import KeyRecord, look_back, places_aside
from samovar.service.query.rule_cache import start_of_version
from samovar.service.topology.encoding import decoding_of
from samovar.service.topology.stages import stage_of

AROUND_MS = 60_000  # before an alert's first event, told event by event; or as long as the alert itself is
_ORDER = ("offset", "partition", "stream")  # after time, the last first
_Taken = TypeVar("_Taken", StreamEvent, KeyRecord)
Decoders: TypeAlias = Callable[[str, tuple[str, ...]], Any]  # of a stream and fields


def trace_key(
    program: Program, key: Sequence[Scalar], events: Sequence[StreamEvent], decoders: Decoders, **options: int
) -> KeyTrace:
    """One rule over these events, in the order of their times. An event's number is its place in the list."""

    def feed(replay: EventReplay) -> Iterator[Matches]:
        for number, event in enumerate(events):
            if event.value is None or event.time is None:
                continue
            decoder = decoders(event.stream, program.fields)
            batch = decoder.batch()
            decoder.decode(batch, joined([event.value]), offsets=np.array([number]), copy=True)
            yield replay.feed(batch)
        yield from replay.finish()

    return follow(program, key, feed, flush=False, **options)


def decoders_of(settings: ServiceFile) -> Decoders:
    """What decodes a stream's values, made once a stream and set of fields."""

    @cache
    def decoder(stream: str, fields: tuple[str, ...]) -> Any:
        own = settings.streams[stream]
        return decoding_of(own)(fields, own.time, own.type, stream)

    return decoder


def limits_of(settings: ServiceFile) -> dict[str, Any]:
    """What bounds a rule's states in this service."""
    return {name: getattr(settings, name) for name in ("max_partials", "max_events", "max_matches")}


def in_order(settings: ServiceFile, events: Iterable[StreamEvent]) -> list[StreamEvent]:
    """As rules take them: by time, and then stream as the service file lists them, partition and offset."""
    streams = {name: number for number, name in enumerate(settings.streams)}
    return sorted(events, key=lambda each: (each.time or 0, streams[each.stream], each.partition, each.offset))


def events_taken(context: QueryContext, rule: Rule, events: Sequence[_Taken]) -> list[_Taken]:
    """Without those that came too late for the rule, or are dead letters."""
    if not events:
        return []
    stage = stage_of(rule, context.settings.streams, context.rule_cache.site().partitions)
    aside = places_aside(context.events, stage, min(each.logged for each in events))
    return [each for each in events if each.place not in aside]


def span_text(rule: Rule) -> str:
    return duration_text(reach_ms(rule))


@dataclass(frozen=True)
class KeyReplay:
    """Rows in the order in which rules take them, with their times; and what they gave, event time at the alert's."""

    rows: Sequence[KeyRecord]
    times: Int64s
    ids: frozenset[str]


def why_alert(
    context: QueryContext, masks: Masks, alert: Alert, rule: Rule, matched: Sequence[StreamEvent]
) -> dict[str, Any]:
    """Why an alert was raised, as data. `matched` are those of its events that the log still has."""
    match = alert.match
    start_ms, end_ms, at_ms = int(match["start"]), int(match["end"]), int(match["at"])
    key = list(match["key"].values())
    replay = _RuleReplay(context, compile_rules([rule]), at_ms + 1)  # a timer fires behind its deadline
    # Further back until the alert is found and nothing that the rule reads is missing, or there is no more.
    for look in look_back(context.events, rule, key, matched, alert.logged, start_ms - reach_ms(rule)):
        run = replay.run(events_taken(context, rule, look.rows)) if look.is_deep or look.is_whole else None
        if run is not None and alert.id in run.ids:
            break
    run = run or replay.run(events_taken(context, rule, look.rows))
    if alert.id not in run.ids:
        begun_ms = start_of_version(context.rule_cache.site(), rule, match)
        if begun_ms is not None:
            times = zip(run.rows, run.times.tolist(), strict=True)
            cut = replay.run([row for row, time in times if time >= begun_ms])
            run = cut if alert.id in cut.ids else run
    told_from_ms = start_ms - max(end_ms - start_ms, AROUND_MS)

    def event_at(number: int) -> StreamEvent:
        row = run.rows[number]
        return context.events.event(row.place, row.logged, None, row.value)

    told = trace_data(masks, replay.story(run, key, told_from_ms), event_at)
    if alert.id in run.ids:
        return told | {"id": masks.alert_id(alert.id, rule)}
    # It was raised all the same: what was missing, as far as it is known.
    reads = f"the rule reads {span_text(rule)} back"
    if not look.is_whole:
        since = "" if look.since_ms is None else f", back to {iso_time(look.since_ms)}"
        reason = f"Only {look.records:,} records were looked through{since}, and {reads}."
    elif look.is_cut:
        reason = f"The log no longer holds all events of that time, and {reads}."
    else:
        reason = "The rule's state came from before a change of rules or lists."
    first = "This alert cannot be shown event by event: a run over the key's events does not find it again."
    return told | {"conclusion": [first, reason], "id": None}


@dataclass
class _RuleReplay:
    """Runs of one rule over a key's records."""

    context: QueryContext
    program: Program
    until_ms: int

    def run(self, rows: Sequence[KeyRecord]) -> KeyReplay:
        """In order, up to the alert; only then it is known which of them are events."""
        settings = self.context.settings
        batches, kept, starts = list[Batch](), list[KeyRecord](), [0]
        for number, stream in enumerate(settings.streams):
            own = [row for row in rows if row.place[0] == stream]
            batch, good = self._decoded(own, number)
            batches.append(batch)
            kept += [own[place] for place in good]
            starts.append(len(kept))
        if not kept:
            return KeyReplay((), np.empty(0, np.int64), frozenset())
        times = np.concatenate([batch.time for batch in batches])
        numbers = [np.concatenate([getattr(batch, part) for batch in batches]) for part in _ORDER]
        places = np.lexsort((*numbers, times))
        places = places[times[places] < self.until_ms]
        merged = gathered(batches, np.array(starts), places, len(self.program.fields))
        topics = [stream.topic for stream in settings.streams.values()]
        found = step(States(self.program, topics=topics, **limits_of(settings)), merged, self.until_ms)
        ids = frozenset(str(match["id"]) for match in found)
        return KeyReplay([kept[place] for place in places.tolist()], times[places], ids)

    def _decoded(
        self, rows: Sequence[KeyRecord], stream: int, numbers: Int64s | None = None
    ) -> tuple[Batch, list[int]]:
        """The events among rows of one stream, and which rows those are."""
        name = list(self.context.settings.streams)[stream]
        decoder = decoders_of(self.context.settings)(name, self.program.fields)
        batch = decoder.batch()
        if not rows:
            return batch, []
        partitions = np.array([row.place[1] for row in rows], np.int32)
        offsets = np.array([row.place[2] for row in rows], np.int64) if numbers is None else numbers
        values = joined([row.value for row in rows])
        verdicts = decoder.decode(batch, values, stream, partitions, offsets, copy=True)
        return batch, np.flatnonzero(verdicts["code"] == 0).tolist()

    def story(self, run: KeyReplay, key: Sequence[Scalar], from_ms: int) -> KeyTrace:
        """The same run, with notes from a time on. An event's number is its place among the rows."""
        batches, starts, order = list[Batch](), [0], list[int]()
        for number, stream in enumerate(self.context.settings.streams):
            mine = [place for place, row in enumerate(run.rows) if row.place[0] == stream]
            batch, _ = self._decoded([run.rows[place] for place in mine], number, np.array(mine, np.int64))
            batches.append(batch)
            order += mine
            starts.append(len(order))
        places = np.argsort(np.array(order, np.int64))
        first, columns = int(np.searchsorted(run.times, from_ms)), len(self.program.fields)
        before, after = (
            gathered(batches, np.array(starts), part, columns) for part in (places[:first], places[first:])
        )
        return follow_from(self.program, key, before, after, self.until_ms, **limits_of(self.context.settings))


def trace_data(masks: Masks, story: KeyTrace, event_at: Callable[[int], StreamEvent]) -> dict[str, Any]:
    """A story without what may not be seen. `event_at` gives an event by its number."""

    def event(number: int) -> str:
        return f"the {event_at(number).type} at {iso_time(event_at(number).time or 0)}"

    def several(numbers: Sequence[int]) -> str:
        return listed((iso_time(event_at(number).time or 0) for number in numbers), 4)

    told = explain(story, Names(event, iso_time, several), masks.shows)
    events = {seen.offset: event_at(seen.offset) for seen in story.events}
    shown = []
    for seen, sentences in told.events:
        at = events[seen.offset]
        fields = {name: value.json if isinstance(value, Other) else value for name, value in seen.fields.items()}
        where = {"stream": at.stream, "partition": at.partition, "offset": at.offset}
        what = {"time": seen.time, "type": seen.type, "fields": masks.fields(fields), "told": list(sentences)}
        shown.append(where | what)
    return {"matches": story.matches, "events": shown, "conclusion": list(told.conclusion)}
