"""`samovar read CONFIG TOPIC`: the records of a topic, a line each, in the order of their log times.

A line is `partition/offset  time  key  value  {headers}`. With `--json` it is an object:

    {"topic", "partition", "offset", "time": epoch ms, "key": text | null, "value": JSON | text | null, "headers": {}}

Values of streams in Avro are shown as the JSON objects that rules see, also among late events and dead letters. What is
no Avro is shown as bytes are.

A key or value that is not text stands under `key_base64` or `value_base64` instead. Of a header that is there several
times, `headers` holds a list.
"""

from __future__ import annotations

import base64
import json
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import IO, Any

from samovar.changelog.cursors import available_reader
from samovar.changelog.formats.dead_letters import PREFIX
from samovar.changelog.log import Bounds, Headers, Log, Records, Topic, TopicPartition
from samovar.common.errors import Refused
from samovar.common.suggest import did_you_mean
from samovar.patterns.engine.decode import RefusedError, time_of
from samovar.patterns.explain.key_trace import iso_time
from samovar.patterns.syntax.findings import visible
from samovar.service.config.checks import topics_by_place
from samovar.service.config.models import TOPICS_OF_A_SERVICE, ServiceFile, emit_topics
from samovar.service.topology.encoding import avro_of

MAX_RECORDS = 5_000
POLL_S = 0.2
PATIENCE_S = 30.0  # longer than a dead writer's transaction can stay open


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    start: str = "begin"
    stop: str | None = None
    partition: int | None = None
    follow: bool = False
    limit: int | None = None
    json: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRecord:
    """One record of a topic."""

    at: TopicPartition
    offset: int
    time_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers

    @property
    def order(self) -> tuple[int, int, int]:
        return self.time_ms, self.at.partition, self.offset


def read(log: Log, settings: ServiceFile, name: str, options: ReadOptions, out: IO[str]) -> None:
    """Writes records until the end that the topic had at the beginning; with `follow`, for ever."""
    topic, readable = topic_of(log, settings, name), readable_by(settings)
    line = as_json if options.json else as_text
    records = follow(log, topic, options) if options.follow else bounded(log, topic, options)
    for number, record in enumerate(records, 1):
        out.write(line(readable(record)) + "\n")
        if options.follow:
            out.flush()
        if number == options.limit:
            return


def topic_of(log: Log, settings: ServiceFile, name: str) -> str:
    """From a stream's name, from `alerts` and the like, or from a topic's own name."""
    if name in settings.streams:
        return settings.streams[name].topic
    words = {word: getattr(settings, key).topic for key, word in TOPICS_OF_A_SERVICE.items()}
    words |= {to: topic for own in emit_topics(settings).values() for to, topic in own.items()}
    topic = str(words.get(name, name))
    if topic in topics_by_place(settings).values() or log.topics([topic]):
        return topic
    known = [*settings.streams, *words, *topics_by_place(settings).values()]
    hint = did_you_mean(name, known) or f"choose a topic, or one of {', '.join([*settings.streams, *words])}"
    raise Refused("unknown-topic", f"there is no topic `{name}`", hint)


def existing_topic(log: Log, name: str) -> Topic:
    found = log.topics([name]).get(name)
    if found is None:
        hint = "`samovar run` and `samovar produce` make it"
        raise Refused("topic-missing", f"the topic {name} does not exist yet", hint)
    return found


def partitions_of(log: Log, topic: str, options: ReadOptions) -> dict[TopicPartition, Bounds]:
    found = existing_topic(log, topic)
    wanted = range(found.partitions) if options.partition is None else [options.partition]
    if options.partition is not None and options.partition >= found.partitions:
        hint = f"choose one from 0 to {found.partitions - 1}"
        raise Refused("unknown-partition", f"{topic} has no partition {options.partition}", hint)
    return dict(log.bounds([TopicPartition(topic, partition) for partition in wanted]))


def offset_of(log: Log, at: TopicPartition, bounds: Bounds, text: str) -> int:
    """The offset that `begin`, `end`, a number, or a time means in a partition; -N is N before its end."""
    if text == "begin":
        return bounds.begin
    if text == "end":
        return bounds.end
    if text.removeprefix("-").isdecimal():
        offset = int(text)
        return max(bounds.begin, bounds.end + offset) if text.startswith("-") else max(bounds.begin, offset)
    try:
        return log.offset_at(at, time_of(text))
    except RefusedError:
        hint = "write begin, end, an offset, -N for the last N, or a time such as 2026-01-05T10:00:00Z"
        raise Refused("bad-place", f"`{text}` is not a place in a topic", hint) from None


def bounded(log: Log, topic: str, options: ReadOptions) -> Iterator[TopicRecord]:
    """Records of all partitions, merged by time; `stop` itself is not part of it."""
    starts: dict[TopicPartition, int] = {}
    ends: dict[TopicPartition, int] = {}
    for at, bounds in partitions_of(log, topic, options).items():
        start = offset_of(log, at, bounds, options.start)
        end = min(bounds.end, offset_of(log, at, bounds, options.stop or "end"))
        if start < end:
            starts[at], ends[at] = start, end
    if not starts:
        return
    waiting: dict[TopicPartition, deque[TopicRecord]] = {at: deque() for at in ends}
    unread, deadline = set(ends), time.monotonic() + PATIENCE_S
    with closing(available_reader(log, starts)) as reader:
        while unread:
            for records in reader.poll(MAX_RECORDS, POLL_S):
                at = TopicPartition(records.topic, records.partition)
                waiting[at].extend(record for record in rows(records) if record.offset < ends[at])
                deadline = time.monotonic() + PATIENCE_S
            unread = {at for at in unread if reader.position(at) < ends[at]}
            if unread and time.monotonic() > deadline:
                at = min(unread)
                raise Refused(
                    "read-stalled",
                    f"{at} stands at offset {reader.position(at)} and does not reach its end, {ends[at]}",
                    "look for a transaction that was left open, and for partitions without a leader",
                )
            # A record may go when nothing earlier can come: every partition with more to read has one waiting.
            while all(waiting[at] for at in unread) and (heads := [queue for queue in waiting.values() if queue]):
                yield min(heads, key=lambda queue: queue[0].order).popleft()


def follow(log: Log, topic: str, options: ReadOptions) -> Iterator[TopicRecord]:
    """Records as they come."""
    found = partitions_of(log, topic, options)
    starts = {at: offset_of(log, at, bounds, options.start) for at, bounds in found.items()}
    with closing(available_reader(log, starts)) as reader:
        while True:
            batch = [record for records in reader.poll(MAX_RECORDS, POLL_S) for record in rows(records)]
            yield from sorted(batch, key=lambda record: record.order)


def rows(records: Records) -> Iterator[TopicRecord]:
    at = TopicPartition(records.topic, records.partition)
    places = zip(records.offsets.tolist(), records.times.tolist(), strict=True)
    for row, (offset, time_ms) in enumerate(places):
        yield TopicRecord(
            at=at,
            offset=offset,
            time_ms=time_ms,
            key=records.key(row),
            value=records.value(row),
            headers=records.headers(row),
        )


def readable_by(settings: ServiceFile) -> Callable[[TopicRecord], TopicRecord]:
    """What makes a record readable, by the stream that it is of or, as a letter, that it came from."""
    streams = [stream for stream in settings.streams.values() if stream.format == "avro"]
    decoders = {stream.topic: avro_of(stream).decoder((), stream.time, stream.type) for stream in streams}

    def readable(record: TopicRecord) -> TopicRecord:
        origin = dict(record.headers).get(PREFIX + "topic", record.at.topic.encode())
        decoder = decoders.get(origin.decode("utf-8", "replace"))
        text = None if decoder is None or record.value is None else decoder.json(record.value)
        return replace(record, value=text.encode()) if isinstance(text, str) else record

    return readable


def as_text(record: TopicRecord) -> str:
    parts = [f"{record.at.partition}/{record.offset}", iso_time(record.time_ms)]
    parts += ["-" if record.key is None else shown(record.key)]
    parts += ["(deleted)" if record.value is None else shown(record.value)]
    if record.headers:
        parts.append("{" + ", ".join(f"{name}: {shown(value)}" for name, value in record.headers) + "}")
    return "  ".join(parts)


def as_json(record: TopicRecord) -> str:
    headers: dict[str, list[str]] = {}
    for name, value in record.headers:
        headers.setdefault(name, []).append(shown(value))
    told = {
        "topic": record.at.topic,
        "partition": record.at.partition,
        "offset": record.offset,
        "time": record.time_ms,
        **field("key", record.key, unpack=False),
        **field("value", record.value, unpack=True),
        "headers": {name: texts if len(texts) > 1 else texts[0] for name, texts in headers.items()},
    }
    return json.dumps(told, ensure_ascii=False)


def field(name: str, data: bytes | None, *, unpack: bool) -> dict[str, Any]:
    """A key or a value as JSON: an object where it is one, else its text, else base64."""
    if data is None:
        return {name: None}
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}
    return {name: unpacked(text) if unpack and text[:1] in ("{", "[") else text}


def unpacked(text: str) -> Any:
    """JSON as data; what is not JSON, or not JSON as all programs read it, stays text."""

    def refuse_constant(word: str) -> Any:
        raise ValueError(f"{word} is not JSON")

    try:
        return json.loads(text, parse_constant=refuse_constant)
    except (ValueError, RecursionError):
        return text


def shown(data: bytes) -> str:
    """Bytes for a terminal: text with nothing hidden in it, or base64.

    >>> shown(b"c1"), shown(b"a\\x1b[31m"), shown(b"\\xff\\x00")
    ('c1', 'a\\\\u001b[31m', 'base64:/wA=')
    """
    try:
        return visible(data.decode()).replace("\t", "\\t")
    except UnicodeDecodeError:
        return f"base64:{base64.b64encode(data).decode()}"
