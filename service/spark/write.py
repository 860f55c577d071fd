"""What `df.write.format("samovar")` and `writeStream` do: rows become events of a stream of a service.

    config      the service file
    stream      the stream that they are written to
    badRows     a folder for rows that are no events, a file of JSON lines for each write; without it they are refused
    query       the name under which a streaming query keeps what it wrote, where its checkpoint is not a local folder

Rows are checked, keyed and encoded by what `samovar produce` does it with. The driver appends them, in one transaction.
For a query that has the number of the batch too, so that one that Spark repeats is not written again:

    topic {service}-spark, compacted, one partition     key: the query     value: {"v": 1, "batch": 7}

A query is known by the id in its checkpoint: another checkpoint is another query, also in the same place.
"""

from __future__ import annotations

import json
import pickle
import sys
import uuid
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from samovar.changelog.cursors import read_all
from samovar.changelog.log import Append, Log, Pair, TopicPartition, TopicSpec
from samovar.common.errors import Refused
from samovar.common.suggest import did_you_mean
from samovar.native.kernel import lines_of
from samovar.patterns.api import message_of
from samovar.patterns.engine.decode import Bad
from samovar.service.config.loading import load_service
from samovar.service.config.models import ServiceFile
from samovar.service.topology.encoding import StreamTarget
from samovar.service.topology.logs import opened, sole_member
from samovar.service.topology.topics import COMPACTED, ensure_inputs, spark_topic

FORMAT = 1
OPTIONS = ("config", "stream", "badRows", "query", "path", "checkpointLocation")
ROWS_AT_ONCE = 10_000
SHOWN_BAD = 10
OURS, TEXT_COLUMN = "_", "value"


@dataclass
class PackedEvents:
    """What a task made of its rows. Without a folder for bad rows only some of those are kept."""

    pairs: list[Pair] = field(default_factory=list)
    bad: list[tuple[str, str, str]] = field(default_factory=list)  # the row, a code, what is wrong
    bad_count: int = 0


@dataclass(frozen=True, kw_only=True)
class EventSink:
    """A stream of a service, to be written to."""

    settings: ServiceFile
    stream: str
    bad_rows: Path | None
    query: str | None

    def pack(self, rows: Iterator[Mapping[str, Any]]) -> bytes:
        """Rows of one task, on an executor."""
        target, made = StreamTarget(self.stream, self.settings.streams[self.stream]), PackedEvents()
        while some := [self._message(row) for row in islice(rows, ROWS_AT_ONCE)]:
            block = b"\n".join(some) + b"\n"
            bad: dict[int, Bad] = {}
            made.pairs += [pair for _, pair in target.records(block, lines_of(block), np.arange(len(some)), bad)]
            made.bad_count += len(bad)
            most = len(bad) if self.bad_rows is not None else SHOWN_BAD - len(made.bad)
            made.bad += [(some[row].decode(), bad[row].code, bad[row].reason) for row in sorted(bad)[:most]]
        return zlib.compress(pickle.dumps(made), 1)

    def _message(self, row: Mapping[str, Any]) -> bytes:
        """An event as JSON. Columns of ours stand for its time and type where it has none; other ones are left out."""
        if list(row) == [TEXT_COLUMN]:  # JSON already; in one line, since it is read by lines
            return ((row[TEXT_COLUMN] or "").strip() or "null").replace("\n", " ").encode()
        stream = self.settings.streams[self.stream]
        event = {name: value for name, value in row.items() if not name.startswith(OURS) and value is not None}
        for own, name in (("_event_time", stream.time), ("_type", stream.type)):
            if name is not None and row.get(own) is not None:
                event.setdefault(name, row[own])
        return message_of(_with_zones(event))

    def commit(self, packed: Sequence[bytes], batch: int | None) -> None:
        """All rows as one transaction, on the driver."""
        made = [pickle.loads(zlib.decompress(each)) for each in packed]  # noqa: S301 - our own executors wrote it
        bad, bad_count = [row for each in made for row in each.bad], sum(each.bad_count for each in made)
        if bad_count and self.bad_rows is None:
            raise _bad_events(self.stream, bad, bad_count)
        if bad:
            self._keep_bad(bad, batch)
        pairs = [pair for each in made for pair in each.pairs]
        with opened(self.settings) as log:
            partitions = ensure_inputs(log, self.settings)
            appends = [Append(topic=self.settings.streams[self.stream].topic, records=pairs, among=partitions)]
            self._transact(log, appends if pairs else [], batch)

    def _transact(self, log: Log, appends: list[Append], batch: int | None) -> None:
        topic = spark_topic(self.settings.service)
        log.create([TopicSpec(topic, 1, COMPACTED, self.settings.replication)])
        query = self.query or uuid.uuid4().hex
        with sole_member(log, f"{topic}-{query}", topic) as member:  # nobody else writes for this query from now on
            if batch is not None:
                written = read_batch(log, topic, query)
                if written is not None and written >= batch:
                    return
                value = json.dumps({"v": FORMAT, "batch": batch}).encode()
                appends = [*appends, Append(topic=topic, records=[(query.encode(), value)], partition=0)]
            if appends:
                member.transact(appends, {})

    def _keep_bad(self, bad: Sequence[tuple[str, str, str]], batch: int | None) -> None:
        """Before the others are written: a batch that is repeated writes the same file again."""
        assert self.bad_rows is not None
        self.bad_rows.mkdir(parents=True, exist_ok=True)
        name = uuid.uuid4().hex if batch is None else f"{self.query}-{batch}"
        path, lines = self.bad_rows / f"{self.stream}-{name}.jsonl", []
        for row, code, reason in bad:
            lines.append(json.dumps({"reason": code, "message": reason, "row": row}, ensure_ascii=False) + "\n")
        part = path.with_suffix(".part")
        part.write_text("".join(lines), "utf-8")
        part.replace(path)
        sys.stderr.write(f"samovar: {len(bad):,} rows are no events of {self.stream}: {path}\n")


def read_batch(log: Log, topic: str, query: str) -> int | None:
    """The last batch that a query wrote."""
    found = None
    for records in read_all(log, TopicPartition(topic, 0)):
        for key, value in records.pairs():
            if key == query.encode() and value is not None:
                mark = json.loads(value)
                if mark["v"] != FORMAT:
                    what = f"what the query {query} wrote was noted by another version of samovar"
                    raise Refused("format-newer", what, "Use that version, or begin with another checkpointLocation.")
                found = int(mark["batch"])
    return found


def _with_zones(value: Any) -> Any:
    """Times of rows are those of this machine's zone, as Spark gives them to Python."""
    if isinstance(value, datetime):
        return value.astimezone()
    if isinstance(value, Mapping):
        return {name: _with_zones(inner) for name, inner in value.items() if inner is not None}
    return [_with_zones(inner) for inner in value] if isinstance(value, list) else value


def _bad_events(stream: str, bad: Sequence[tuple[str, str, str]], count: int) -> Refused:
    shown = "\n  ".join(f"{reason}: {row[:200]}" for row, _, reason in bad[:SHOWN_BAD])
    rows = "1 row is" if count == 1 else f"{count:,} rows are"
    return Refused(
        "bad-events",
        f"{rows} no event of the stream `{stream}`; nothing was written",
        'Fix them, or keep them apart with `.option("badRows", FOLDER)`.',
        shown,
    )


def sink_of(options: Mapping[str, str], schema: str, is_stream: bool, folder: str = ".") -> EventSink:
    """A writer's options, checked. `schema` is that of the rows, as text."""
    given = {name.lower(): value for name, value in options.items()}
    for name in given:
        if name not in map(str.lower, OPTIONS):
            hint = did_you_mean(name, OPTIONS) or f"Options are {', '.join(OPTIONS[:4])}."
            raise Refused("frame-option", f"there is no option `{name}` for writing", hint)
    config, stream = given.get("config") or given.get("path"), given.get("stream")
    if config is None or stream is None:
        what = f"the option `{'config' if config is None else 'stream'}` is missing"
        raise Refused("frame-option", what, 'Add `.options(config="service.yml", stream="purchase")`.')
    settings = load_service((Path(folder) / config).absolute())
    if stream not in settings.streams:
        hint = did_you_mean(stream, settings.streams) or f"Streams are {', '.join(settings.streams)}."
        raise Refused("frame-option", f"the service has no stream `{stream}`", hint)
    if "timestamp_ntz" in schema:
        hint = "Cast it to a timestamp: an event's time is an instant."
        raise Refused("frame-option", "the rows have a time without a zone (timestamp_ntz)", hint)
    bad_rows = None if "badrows" not in given else Path(folder) / given["badrows"]
    query = given.get("query") or (_query_id(given.get("checkpointlocation"), folder) if is_stream else None)
    return EventSink(settings=settings, stream=stream, bad_rows=bad_rows, query=query)


def _query_id(checkpoint: str | None, folder: str) -> str:
    """The id that Spark gave to the query when it made the checkpoint."""
    if checkpoint is not None:
        metadata = Path(folder) / checkpoint.removeprefix("file://").removeprefix("file:") / "metadata"
        if metadata.exists():
            return str(json.loads(metadata.read_text("utf-8"))["id"])
    raise Refused(
        "frame-option",
        "it cannot be told which query this is: its checkpoint is not a folder of this machine",
        'Give it a name of its own: `.option("query", NAME)`; another name with every new checkpoint.',
    )
