"""A rule tried on recent traffic: the newest events of its streams, run through it once, nothing published."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from samovar.changelog.log import Records, TopicPartition
from samovar.patterns.engine.compile import Program, compile_rules
from samovar.patterns.engine.replay import EventReplay
from samovar.patterns.syntax.tree import Rule
from samovar.service.alerts.index import key_text
from samovar.service.masking.fields import Masks
from samovar.service.query.why import decoders_of
from samovar.service.topology.stages import streams_of

if TYPE_CHECKING:
    from samovar.service.http.state import AppState

SHOWN = 50
KEYS_SHOWN = 20
TRY_S = 20.0  # until what was read by then must do


@dataclass
class EventsRead:
    """What was read: by its number, where each event came from."""

    places: list[tuple[str, int, int]] = field(default_factory=list)
    raw: list[bytes | None] = field(default_factory=list)
    bad: int = 0
    complete: bool = True
    first_ms: int | None = None
    last_ms: int | None = None


def try_rule(app_state: AppState, masks: Masks, rule: Rule, minutes: float, most: int) -> dict[str, Any]:
    begun = time.monotonic()
    program = compile_rules([rule])
    taken = EventsRead()
    replay = EventReplay(program, flush=False, show_suppressed=True, tunables=app_state.settings.tunables)
    matches: list[Mapping[str, Any]] = []
    for batch in _batches(app_state, program, rule, minutes, most, taken):
        matches += list(replay.feed(batch))
    for found in replay.finish():
        matches += list(found)
    raised = [match for match in matches if not match.get("suppressed")]
    keys = Counter(masks.key_text(key_text(match["key"]), rule) for match in raised)
    return {
        "events": replay.events,
        "from": taken.first_ms,
        "to": taken.last_ms,
        "bad": taken.bad,
        "matches": len(raised),
        "suppressed": len(matches) - len(raised),
        "alerts": [_shown(app_state, masks, rule, match, taken) for match in raised[-SHOWN:]][::-1],
        "per_key": [
            {"key_text": key, "key_ref": masks.key_ref(key, rule), "count": count}
            for key, count in keys.most_common(KEYS_SHOWN)
        ],
        "seconds": round(time.monotonic() - begun, 3),
        "complete": taken.complete,
    }


def _batches(
    app_state: AppState, program: Program, rule: Rule, minutes: float, most: int, taken: EventsRead
) -> Iterator[Any]:
    decoders = decoders_of(app_state.settings)
    deadline = time.monotonic() + TRY_S
    since_ms = int(time.time() * 1000 - minutes * 60_000)
    for stream, ranges in _ranges(app_state, rule, since_ms, most, taken).items():
        for records in app_state.events.window(ranges, TRY_S):
            if time.monotonic() > deadline:
                taken.complete = False
                return
            yield _decoded(decoders(stream, program.fields), stream, records, taken)


def _ranges(
    app_state: AppState, rule: Rule, since_ms: int, most: int, taken: EventsRead
) -> dict[str, dict[TopicPartition, tuple[int, int]]]:
    """By stream, which records to read: since a log time, and of each partition an equal share of the newest."""
    streams = app_state.settings.streams
    wanted = {name: app_state.events.places_of(streams[name].topic) for name in streams_of(rule, streams)}
    share = max(most // max(sum(map(len, wanted.values())), 1), 1)
    found: dict[str, dict[TopicPartition, tuple[int, int]]] = {}
    for stream, places in wanted.items():
        for at, (begin, end) in places.items():
            start = max(app_state.log.offset_at(at, since_ms), begin)
            if end - start > share:
                start, taken.complete = end - share, False
            found.setdefault(stream, {})[at] = start, end
    return found


def _decoded(decoder: Any, stream: str, records: Records, taken: EventsRead) -> Any:
    first = len(taken.places)
    offsets = records.offsets.tolist()
    taken.places += [(stream, records.partition, offset) for offset in offsets]
    taken.raw += [records.value(row) for row in range(len(records))]
    batch = decoder.batch()
    verdicts = decoder.decode(batch, records.values, offsets=np.arange(first, first + len(offsets)), copy=True)
    taken.bad += int(np.count_nonzero(verdicts["code"]))
    if len(batch):
        low, high = int(batch.time.min()), int(batch.time.max())
        taken.first_ms = low if taken.first_ms is None else min(taken.first_ms, low)
        taken.last_ms = high if taken.last_ms is None else max(taken.last_ms, high)
    return batch


def _shown(
    app_state: AppState, masks: Masks, rule: Rule, match: Mapping[str, Any], taken: EventsRead
) -> dict[str, Any]:
    shown = masks.alert(match, rule)
    timeline = []
    for step, numbers in match["steps"].items():
        for number in numbers[:100]:
            stream, partition, offset = taken.places[number]
            event = app_state.events.event((stream, 0, 0), 0, None, taken.raw[number])
            where = {"stream": stream, "partition": partition, "offset": offset, "step": step}
            timeline.append(where | event.data() | {"step": step, "event": masks.event(stream, event.event)} | where)
    timeline.sort(key=lambda each: (each["time"] or 0, each["stream"], each["partition"], each["offset"]))
    return {
        "rule": rule.id,
        "key": shown["key"],
        "key_text": masks.key_text(key_text(match["key"]), rule),
        "start": match["start"],
        "end": match["end"],
        "at": match["at"],
        "message": shown.get("message"),
        "emit": shown.get("emit", {}),
        "events": sum(map(len, match["steps"].values())),
        "timeline": timeline,
    }
