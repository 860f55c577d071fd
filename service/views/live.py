"""What happened since a version was made: the tail of its source's log, as states of the view's aggregates by key.

It is read once and held as long as the version is the one that is shown; each answer reads what came since the last.
How many records that may be is bounded (`views: {tail_records}`), and with them what is held.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from samovar.changelog.log import Log, TopicPartition
from samovar.changelog.partitioner import partition_of
from samovar.common.errors import LogUnavailable
from samovar.service.config.models import ServiceFile
from samovar.service.topology.rule_registry import with_published_rules
from samovar.service.views.live_sql import KINDS, LiveQuery, NotLive, live_query
from samovar.service.views.served_rows import RowCodec
from samovar.service.views.sources import Sources, stream_tables
from samovar.service.views.store import ViewManifest

if TYPE_CHECKING:
    import pyarrow as pa

WAIT_S = 1.0  # for records that the log says are there: a transaction may be open
LOOK_S = 10.0  # between two looks at how many partitions there are
POLL_RECORDS = 20_000
COMPACTED = ("states", "changes", "labels")  # tables whose rows are replaced
OF_ARROW = {"int32": "int", "int64": "bigint", "double": "double", "string": "string", "bool": "boolean"}


def append_only(sources: Sources, names: Sequence[str]) -> dict[str, dict[str, str]]:
    """Of tables whose rows are only ever added, the columns (fields in a struct with \\0 before them) and types."""
    found = {}
    for name in names:
        if name not in COMPACTED and name in sources:
            columns = _types(sources.frame(name).schema)
            found[name] = {"day": "date", **columns} if sources[name].time else columns
    return found


def _types(fields: Any, before: str = "") -> dict[str, str]:
    found: dict[str, str] = {}
    for each in fields:
        kind = str(each.type)
        found[before + each.name] = "timestamp" if kind.startswith("timestamp") else OF_ARROW.get(kind, kind)
        if kind.startswith("struct<"):
            fields_of = [each.type.field(place) for place in range(each.type.num_fields)]
            found |= _types(fields_of, f"{before}{each.name}\0")
    return found


@dataclass(frozen=True)
class Completion:
    """Of one key: the states of what came since; without a reason, with all that was there up to the offsets."""

    states: list[Any] | None
    offsets: Mapping[str, int]
    since: int | None  # records since the version; None where nobody knows
    reason: str = ""


@dataclass(kw_only=True)
class Tail:
    """The source of truth for what came after one version. Threads may share it."""

    settings: ServiceFile
    log: Log
    manifest: ViewManifest
    codec: RowCodec
    query: LiveQuery | None = None
    reason: str = ""
    groups: dict[bytes, list[Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self.reason = str(self.manifest.serving["reason"])
        self._sources: Sources | None = None
        self._columns: Any = None
        self._looked_s = -LOOK_S
        bounds = {at: end for source in self.manifest.sources.values() for at, (_, end) in source.items()}
        self._begin = {_place(at): end for at, end in bounds.items()}
        self._next = dict(self._begin)

    def completed(self, key: Sequence[Any], packed: bytes) -> Completion:
        """What came of a key since. Where the log does not answer, the version is still there."""
        with self._lock:
            begin = {str(at): end for at, end in self._begin.items()}
            try:
                return self._completed(key, packed)
            except NotLive as reason:
                return Completion(None, begin, self._since(), str(reason))
            except LogUnavailable as error:
                return Completion(None, begin, None, f"the log does not answer: {error}")

    def _since(self) -> int | None:
        try:
            ends = self.log.bounds(list(self._begin))
        except LogUnavailable:
            return None
        return sum(max(ends[at].end - begin, 0) for at, begin in self._begin.items())

    def _completed(self, key: Sequence[Any], packed: bytes) -> Completion:
        if self.reason:
            raise NotLive(self.reason)
        query = self.query = self.query or self._query()
        self._look_at_partitions()
        places = self._places_of(query, key)
        bounds = self.log.bounds(places)
        since = sum(max(bounds[at].end - self._begin[at], 0) for at in places)
        if any(bounds[at].begin > self._next[at] for at in places):
            raise NotLive("the log's retention has taken records that came since")
        most = self.settings.views.tail_records
        if since > most:
            raise NotLive(f"{since:,} records came since, and at most {most:,} (`views: tail_records`) are read")
        ends = {at: bounds[at].end for at in places if bounds[at].end > self._next[at]}
        if ends:
            self._read_to(query, ends)
        offsets = {str(at): self._next[at] for at in places}
        return Completion(self.groups.get(packed), offsets, since)

    def _query(self) -> LiveQuery:
        serving = self.manifest.serving
        found = live_query(
            serving["sql"], serving["key"], append_only(self._fresh_sources(), list(self.manifest.sources))
        )
        types = {name: KINDS.get(kind) for name, kind in self.manifest.columns.items()}
        if {name: each.kind for name, each in found.outputs.items()} != types:
            self.reason = "the columns of its source have other types since"
            raise NotLive(self.reason)
        topics = {_place(at).topic for at in self.manifest.sources[found.table]}
        self._begin = {at: end for at, end in self._begin.items() if at.topic in topics}
        return found

    def _fresh_sources(self) -> Sources:
        self._sources = Sources(with_published_rules(self.settings, self.log), self.log)
        return self._sources

    def _look_at_partitions(self) -> None:
        """A topic may have been given more of them."""
        if time.monotonic() - self._looked_s < LOOK_S:
            return
        for topic in self.log.topics({at.topic for at in self._begin}).values():
            for number in range(topic.partitions):
                self._begin.setdefault(TopicPartition(topic.name, number), 0)
                self._next.setdefault(TopicPartition(topic.name, number), 0)
        self._looked_s = time.monotonic()

    def _places_of(self, query: LiveQuery, key: Sequence[Any]) -> list[TopicPartition]:
        """Where records of a key can be: in one partition, where its stream is keyed by it."""
        stream = stream_tables(self.settings).get(query.table)
        every = sorted(self._begin, key=lambda at: (at.topic, at.partition))
        if stream is None or len(query.key) > 1 or not isinstance(key[0], str):
            return every
        spec = self.settings.streams[stream]
        if [*query.plain_key.values()] != [spec.key] or spec.repartition is not None:
            return every
        return [TopicPartition(spec.topic, partition_of(key[0].encode("utf-8", "replace"), len(every)))]

    def _read_to(self, query: LiveQuery, ends: Mapping[TopicPartition, int]) -> None:
        is_stream = query.table in stream_tables(self.settings)
        # Alerts carry what their rules say, and rules come: each look at new alerts is one at the rules too.
        sources = self._sources if is_stream and self._sources is not None else self._fresh_sources()
        frame = sources.frame(query.table)
        columns = self._columns = self._columns if is_stream and self._columns else frame.columns()
        positions, last_s = {at: self._next[at] for at in ends}, time.monotonic()
        few = sum(ends[at] - start for at, start in positions.items())
        with closing(self.log.point_reader(positions, few)) as reader:
            while any(self._next[at] < end for at, end in ends.items()):
                found = reader.poll(POLL_RECORDS, 0.05)
                for records in found:
                    for batch in frame.batches(records, columns) if len(records) else ():
                        self._add(query, sources[query.table].time, batch)
                    self._next[TopicPartition(records.topic, records.partition)] = records.next
                    last_s = time.monotonic()
                for at in ends:
                    if not found:
                        self._next[at] = max(self._next[at], reader.position(at))
                if time.monotonic() - last_s > WAIT_S:
                    return  # the answer says how far it reaches

    def _add(self, query: LiveQuery, time_column: str | None, batch: pa.RecordBatch) -> None:
        has_day = "day" in query.columns and "day" not in batch.schema.names
        wanted = [name for name in query.columns if name in batch.schema.names]
        wanted += [time_column] if has_day and time_column is not None and time_column not in wanted else []
        try:
            for row in batch.select(wanted).to_pylist() if wanted else [{}] * batch.num_rows:
                if has_day:
                    row["day"] = None if row[time_column] is None else row[time_column].date()
                key = query.key_of(row)
                if key is not None:
                    packed = self.codec.packed_key(key)
                    self.groups[packed] = query.add(self.groups.get(packed), row)
        except (ArithmeticError, ValueError, TypeError) as error:
            self.reason, self.groups = f"a record that came since cannot be computed: {error}", {}
            raise NotLive(self.reason) from error


def _place(text: str) -> TopicPartition:
    topic, _, partition = text.rpartition("/")
    return TopicPartition(topic, int(partition))
