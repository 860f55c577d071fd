"""The intake of a user's task: events in order as every task's, and with each the bytes of its record.

Rules read columns; a task is given whole events. The bytes of records that wait for event time are kept here, and
read again after a crash, as the columns are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from samovar.changelog.keytexts import key_text
from samovar.changelog.log import Headers, Pair, Records
from samovar.changelog.record import Input
from samovar.changelog.redriven import carried
from samovar.patterns.native import Batch
from samovar.tasks.intake import Fed, Intake
from samovar.tasks.plan import InputSpec
from samovar.tasks.user import Event


class Given(NamedTuple):
    """An event, its record's key and value, and the headers that a letter of it keeps."""

    event: Event
    record: Pair
    headers: Headers


class WholeIntake(Intake):
    """`kept` is the source of truth for the bytes of all events that were taken and not given out yet."""

    def __init__(self, inputs: Sequence[InputSpec], fields: Sequence[str], partition: int) -> None:
        super().__init__(inputs, fields, partition)
        self.kept: dict[tuple[int, int], tuple[Pair, Headers]] = {}  # by number of the stream and offset

    def feed(self, records: Records) -> Fed:
        fed = super().feed(records)
        aside = {each.row for each in fed.dead} | {each.row for each in fed.late}
        number = self.by_topic[records.topic].number
        for row, offset in enumerate(records.offsets.tolist()):
            if row not in aside:
                self._keep(number, offset, records, row)
        return fed

    def recover(self, stream: str, records: Sequence[Records], stored: Input) -> None:
        super().recover(stream, records, stored)
        number = self.sources[stream].number
        pending = self.buffer.pending
        waiting = set(pending.offset[pending.stream == number].tolist())
        for each in records:
            for row, offset in enumerate(each.offsets.tolist()):
                if offset in waiting:
                    self._keep(number, offset, each, row)

    def _keep(self, number: int, offset: int, records: Records, row: int) -> None:
        record = records.key(row), records.value(row)
        self.kept[number, offset] = record, carried(records.headers(row))

    def events(self, released: Batch) -> Iterator[Given]:
        """Released rows as events, in their order. Each is forgotten as it is given out."""
        sources = {source.number: source for source in self.sources.values()}
        keys = {column: released.values(column) for column in {source.key_column for source in sources.values()}}
        places = (released.time.tolist(), released.stream.tolist(), released.offset.tolist(), released.types())
        for row, (time, number, offset, kind) in enumerate(zip(*places, strict=True)):
            source = sources[number]
            record, headers = self.kept.pop((number, offset))
            text = key_text(keys[source.key_column][row]) or b""
            spec, fields = source.spec, source.decoder.whole(record[1] or b"")
            place = spec.topic, self.partition, offset
            yield Given(Event(spec.stream, kind, text.decode(), time, fields, *place), record, headers)
