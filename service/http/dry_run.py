"""A rule tried on recent traffic: the newest events of its streams, run through it once, nothing published."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from samovar.changelog.log import Records, TopicPartition
from samovar.patterns.engine.compile import Program, compile_rules
from samovar.patterns.engine.replay import EventReplay
from samovar.patterns.syntax.tree import Rule
from samovar.service.alerts.index import key_text
from samovar.service.http.state import AppState
from samovar.service.masking.fields import Masks
from samovar.service.query.why import decoders_of
from samovar.service.topology.stages import streams_of

SHOWN = 50
KEYS_SHOWN = 20
TRY_S = 20.0  # until what was read by then must do


@dataclass(kw_only=True)
class EventsRead:
    """What was read: by its number, where each event came from."""

    places: list[tuple[str, int, int]] = field(default_factory=list)
    raw: list[bytes | None] = field(default_factory=list)
    bad: int = 0
    complete: bool = True
    first_ms: int | None = None
    last_ms: int | None = None

    def decode(self, decoder: Any, stream: str, records: Records) -> Any:
        first, offsets = len(self.places), records.offsets.tolist()
        self.places += [(stream, records.partition, offset) for offset in offsets]
        self.raw += [records.value(row) for row in range(len(records))]
        batch = decoder.batch()
        verdicts = decoder.decode(batch, records.values, offsets=np.arange(first, first + len(offsets)), copy=True)
        self.bad += int(np.count_nonzero(verdicts["code"]))
        if len(batch):
            low, high = int(batch.time.min()), int(batch.time.max())
            self.first_ms = low if self.first_ms is None else min(self.first_ms, low)
            self.last_ms = high if self.last_ms is None else max(self.last_ms, high)
        return batch


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
    keys = Counter(masks.key_text(key_text(match["key"]), rule) for match in raised).most_common(KEYS_SHOWN)
    return {
        "events": replay.events,
        "from": taken.first_ms,
        "to": taken.last_ms,
        "bad": taken.bad,
        "matches": len(raised),
        "suppressed": len(matches) - len(raised),
        "alerts": [_match_answer(app_state, masks, rule, match, taken) for match in raised[-SHOWN:]][::-1],
        "per_key": [{"key_text": key, "key_ref": masks.key_ref(key, rule), "count": count} for key, count in keys],
        "seconds": round(time.monotonic() - begun, 3),
        "complete": taken.complete,
    }


def _batches(
    app_state: AppState, program: Program, rule: Rule, minutes: float, most: int, taken: EventsRead
) -> Iterator[Any]:
    """Decodes records since a log time, of each partition an equal share of the newest."""
    deadline = time.monotonic() + TRY_S
    since_ms = int(time.time() * 1000 - minutes * 60_000)
    decoders = decoders_of(app_state.settings)
    streams = app_state.settings.streams
    wanted = {name: app_state.events.places_of(streams[name].topic) for name in streams_of(rule, streams)}
    share = max(most // max(sum(map(len, wanted.values())), 1), 1)
    for stream, places in wanted.items():
        ranges: dict[TopicPartition, tuple[int, int]] = {}
        for at, (begin, end) in places.items():
            start = max(app_state.log.offset_at(at, since_ms), begin)
            if end - start > share:
                start, taken.complete = end - share, False
            ranges[at] = start, end
        for records in app_state.events.window(ranges, TRY_S) if ranges else ():
            if time.monotonic() > deadline:
                taken.complete = False
                return
            yield taken.decode(decoders(stream, program.fields), stream, records)


def _match_answer(
    app_state: AppState, masks: Masks, rule: Rule, match: Mapping[str, Any], taken: EventsRead
) -> dict[str, Any]:
    shown = masks.alert(match, rule)
    timeline = []
    for step, numbers in match["steps"].items():
        for number in numbers[:100]:
            stream, partition, offset = taken.places[number]
            event = app_state.events.event((stream, 0, 0), 0, None, taken.raw[number])
            where = {"stream": stream, "partition": partition, "offset": offset, "step": step}
            timeline.append(event.data() | {"event": masks.event(stream, event.event)} | where)
    timeline.sort(key=lambda each: (each["time"] or 0, each["stream"], each["partition"], each["offset"]))
    return {
        "rule": rule.id,
        "key": shown["key"],
        "key_text": masks.key_text(key_text(match["key"]), rule),
        **{name: match[name] for name in ("start", "end", "at")},
        "message": shown.get("message"),
        "emit": shown.get("emit", {}),
        "events": sum(map(len, match["steps"].values())),
        "timeline": timeline,
    }
