"""The intake of a user's task: events in order as every task's, and with each the bytes of its record.

Rules read columns; a task is given whole events. The bytes of records that wait for event time are kept here, and
read again after a crash, as the columns are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeAlias

from samovar.changelog.formats.record import InputPosition
from samovar.changelog.formats.redrives import carried
from samovar.changelog.formats.waiting import WaitingEvent
from samovar.changelog.log import Headers, Pair, Records
from samovar.changelog.partitioner import key_text
from samovar.common.tunables import DEFAULTS, Tunables
from samovar.native.kernel import Batch
from samovar.tasks.input.repartition_source import RepartitionSource
from samovar.tasks.input.source import DecodedBatch, StreamSource
from samovar.tasks.model.plan import InputSpec
from samovar.tasks.model.user_task import Event

Place: TypeAlias = tuple[int, int, int]  # number of the stream, partition and offset of its topic


class UserEvent(NamedTuple):
    """An event, its record's key and value, and the headers that a letter of it keeps."""

    event: Event
    record: Pair
    headers: Headers


class UserStreamSource(StreamSource):
    """`kept` is the source of truth for the bytes of all events that were taken and not given out yet."""

    def __init__(
        self, inputs: Sequence[InputSpec], fields: Sequence[str], partition: int, tunables: Tunables = DEFAULTS
    ) -> None:
        super().__init__(inputs, fields, partition, tunables)
        self.kept: dict[Place, tuple[Pair, Headers]] = {}
        self._kept_bytes = 0

    def waiting_bytes(self) -> int:
        return super().waiting_bytes() + self._kept_bytes

    def feed(self, records: Records) -> DecodedBatch:
        fed = super().feed(records)
        late = {each.row for each in fed.late}
        self._keep(records, [row for row in fed.rows.tolist() if row not in late])
        return fed

    def recover(self, stream: str, records: Sequence[Records], stored: InputPosition) -> None:
        super().recover(stream, records, stored)
        pending, number = self.buffer.pending, self.sources[stream].number
        mine = pending.stream == number
        waiting = set(zip(pending.partition[mine].tolist(), pending.offset[mine].tolist(), strict=True))
        for each in records:
            places = zip(*self.origins(each), strict=True)
            self._keep(each, [row for row, place in enumerate(places) if place in waiting])

    def take_back(self, stream: str, events: Sequence[WaitingEvent]) -> int:
        last, number = super().take_back(stream, events), self.sources[stream].number
        pending = self.buffer.pending
        waiting = set(zip(pending.stream.tolist(), pending.partition.tolist(), pending.offset.tolist(), strict=True))
        for event in events:
            place, record = (number, event.partition, event.offset), (event.key, event.value)
            if place in waiting:
                self.kept[place] = record, ()
                self._kept_bytes += _size(record)
        return last

    def _keep(self, records: Records, rows: Sequence[int]) -> None:
        number, (partitions, offsets) = self.by_topic[records.topic].number, self.origins(records)
        for row in rows:
            record, place = self.original(records, row), (number, partitions[row], offsets[row])
            self.kept[place] = record, carried(records.headers(row))
            self._kept_bytes += _size(record)

    def events(self, released: Batch) -> Iterator[UserEvent]:
        """Released rows as events, in their order. Each is forgotten as it is given out."""
        sources = {source.number: source for source in self.sources.values()}
        keys = {column: released.values(column) for column in {source.key_column for source in sources.values()}}
        places = zip(released.stream.tolist(), released.partition.tolist(), released.offset.tolist(), strict=True)
        for row, (place, time, kind) in enumerate(zip(places, released.time.tolist(), released.types(), strict=True)):
            source = sources[place[0]]
            record, headers = self.kept.pop(place)
            self._kept_bytes -= _size(record)
            text = key_text(keys[source.key_column][row]) or b""
            spec, fields = source.spec, source.decoder.whole(record[1] or b"")
            event = Event(spec.stream, kind, text.decode(), time, fields, spec.origin, *place[1:])
            yield UserEvent(event, record, headers)


def _size(record: Pair) -> int:
    return sum(len(part) for part in record if part is not None)


class UserRepartitionSource(UserStreamSource, RepartitionSource):
    """The same, of events that come through repartition topics."""
