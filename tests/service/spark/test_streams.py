"""`spark.readStream.format("samovar")`: every row once, whatever ends a query and whatever happens to the topics."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import samovar
from samovar.changelog.cursors import PartitionCursor
from samovar.changelog.embedded.file import connect
from samovar.changelog.log import Append, Log, TopicPartition, TopicSpec
from samovar.changelog.spark.errors import translated
from samovar.changelog.spark.session import OpenSession
from samovar.common.errors import Refused
from samovar.service.spark.frames import states
from samovar.service.spark.frames.frame import frame_of
from samovar.service.spark.frames.stream import ServiceStream, StreamOffsets, stream_of
from tests.service.spark.test_frames import SESSIONS, moment
from tests.support.small_service import Service, make, many, purchase

Row = dict[str, Any]


@pytest.fixture
def service(tmp_path: Path) -> Service:
    """40 events, and a message that is none."""
    made = make(tmp_path / "s")
    made.process(many(40))
    with made.log() as log:
        log.append([Append(topic="purchase", records=[(b"c1", b"{no json")])])
    made.process([])
    made.settle()
    return made


def opened(service: Service, source: str, **options: str) -> closing[ServiceStream]:
    return closing(stream_of({"config": str(service.config), "source": source, **options}))


def rows_between(stream: ServiceStream, start: Any, end: Any) -> list[Row]:
    """A batch, as Spark reads it."""
    batches = [batch for part in stream.parts(start, end) for batch in stream.read(part)]
    return pa.Table.from_batches(batches, stream.frame.schema).to_pylist() if batches else []


def followed(stream: ServiceStream, start: Any = None) -> Iterator[tuple[Any, list[Row]]]:
    """Batches until nothing is left, each with its end; calls come in the order of Spark's."""
    if start is not None:
        stream.parts(start, start)
    while (end := json.loads(json.dumps(stream.latest_offset()))) != start:
        start = stream.initial_offset() if start is None else start
        yield end, rows_between(stream, start, end)
        start = end


def of_frame(service: Service, source: str, **options: str) -> list[Row]:
    frame = frame_of({"config": str(service.config), "source": source, **options})
    return [row for part in frame.parts for batch in frame.read(part) for row in batch.to_pylist()]


def by_text(rows: list[Row]) -> list[str]:
    return sorted(map(repr, rows))


# ---------------------------------------------------------------- what is read


@pytest.mark.parametrize(
    "source", ["inputs/purchase", "alerts", "alerts/testing", "sessions", "dead-letters", "late", "labels", "changelog"]
)
def test_a_stream_has_the_rows_of_its_frame(service: Service, source: str) -> None:
    """In batches of any size, also those that end inside a commit, and from one checkpoint to the next."""
    (service.config.parent / "rules" / "visits.yml").write_text(SESSIONS)
    service.process([purchase("c1", 4_000 + 10 * n, 30) for n in range(3)] + [purchase("c1", 9_000, 5)])
    service.settle()
    options = {"mode": "changes"} if source == "changelog" else {}
    wanted = by_text(of_frame(service, source, **options))
    assert wanted or source in ("late", "labels")
    for limit in (None, "1", "7"):
        limited = options if limit is None else {**options, "maxRecordsPerTrigger": limit}
        with opened(service, source, **limited) as stream:
            batches = list(followed(stream))
        assert by_text([row for _, rows in batches for row in rows]) == wanted
        half = batches[: len(batches) // 2 + 1]
        with opened(service, source, **limited) as stream:
            rest = list(followed(stream, half[-1][0]))
        assert by_text([row for _, rows in [*half, *rest] for row in rows]) == wanted


def test_a_batch_of_changes_reads_only_what_is_new(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """States up to it are kept; a batch that is repeated finds those before it; another executor folds them again."""
    starts: list[int] = []
    found: tuple[list[int], list[Row]] = ([], [])

    class Counting(PartitionCursor):
        def __init__(self, log: Log, at: TopicPartition, offset: int) -> None:
            starts.append(offset)
            super().__init__(log, at, offset)

    monkeypatch.setattr(states, "PartitionCursor", Counting)

    def read(start: Any, end: Any) -> tuple[list[int], list[Row]]:
        starts.clear()
        rows = rows_between(stream, start, end)
        return sorted(starts), rows

    with opened(service, "changelog", mode="changes") as stream:
        ends = [stream.initial_offset()]
        for second in (4_000, 5_000, 6_000):
            ends.append(stream.latest_offset())
            found = read(ends[-2], ends[-1])
            assert len(found[1]) > 0
            service.process([purchase("c1", second, 30), purchase("c2", second, 30)])
        assert set(found[0]) <= set(StreamOffsets.of(ends[-2]).offsets.values())
        assert 0 not in found[0]
        assert len(found[1]) < 20
        again = read(ends[-2], ends[-1])
        assert again == found
        monkeypatch.setattr(states, "scratch_folder", lambda: service.config.parent / "elsewhere")
        assert read(ends[-2], ends[-1]) == ([0] * len(found[0]), found[1])


def test_changes_say_what_became_of_a_state(service: Service) -> None:
    for second in (4_000, 4_010, 4_020):
        service.process([purchase("c77", second, 1)])
    service.process([purchase(f"c{number}", 400_000, 1) for number in range(8)])
    service.settle()
    with opened(service, "changelog", mode="changes", key="c77") as stream:
        rows = [row for _, rows in followed(stream) for row in rows if row["name"] == "testing"]
    assert [row["op"] for row in rows][:2] == ["insert", "update"]
    assert rows[-1]["op"] == "delete"
    assert all((row["op"] == "delete") == row["deleted"] for row in rows)


def test_a_batch_holds_about_as_many_as_it_may(service: Service) -> None:
    with opened(service, "inputs/purchase", maxRecordsPerTrigger="7") as stream:
        sizes = [len(rows) for _, rows in followed(stream)]
    assert sizes == [7, 7, 7, 7, 7, 6]


def test_where_a_stream_begins(service: Service) -> None:
    with opened(service, "inputs/purchase", startingOffsets="latest") as stream:
        end = stream.latest_offset()  # which Spark asks for first
        service.produce([purchase("c9", 5_000, 1)])
        start = stream.initial_offset()
        assert start == end
        assert [row["card"] for row in rows_between(stream, start, stream.latest_offset())] == ["c9"]
    with opened(service, "inputs/purchase", **{"from": "-1"}) as stream:
        assert len(rows_between(stream, stream.initial_offset(), stream.latest_offset())) == 2  # of two partitions
    service.clock.pass_ms(60_000)
    service.produce([purchase("c9", 5_001, 1)])
    with opened(service, "inputs/purchase", **{"from": moment(service.clock.wall_ms()).isoformat()}) as stream:
        assert len(rows_between(stream, stream.initial_offset(), stream.latest_offset())) == 1


def test_columns_are_those_of_the_start(service: Service) -> None:
    """A field that comes later is not a column, and events that have it are read all the same."""
    with opened(service, "inputs/purchase") as stream:
        ends = [end for end, _ in followed(stream)]
        text = service.config.read_text()
        service.config.write_text(text.replace("country: string}", "country: string, device: string}"))
        service.produce([{**purchase("c1", 5_000, 1), "device": "phone"}])
        ((_, (row,)),) = followed(stream, ends[-1])
        assert (row["card"], "device" in row) == ("c1", False)


def test_alerts_of_versions_that_came_later_have_their_severity(service: Service) -> None:
    with opened(service, "sessions") as stream, opened(service, "alerts") as alerts:
        known, seen = [end for end, _ in followed(stream)][-1:], [end for end, _ in followed(alerts)][-1]
        (service.config.parent / "rules" / "visits.yml").write_text(SESSIONS)
        service.process([purchase("c1", 4_000 + 10 * n, 30) for n in range(3)] + [purchase("c1", 9_000, 5)])
        service.settle()
        later = [row for _, rows in followed(stream, *known) for row in rows]
        found = [row for _, rows in followed(alerts, seen) for row in rows if row["rule"] == "visits"]
    assert {(row["severity"], tuple(row["tags"])) for row in found} == {("low", ("web",))}
    assert {row["id"] for row in later} == {row["id"] for row in found}


# ---------------------------------------------------------------- what happens to topics


def test_partitions_and_topics_that_come_later_are_read_from_their_beginning(service: Service) -> None:
    with opened(service, "labels", startingOffsets="latest") as stream:
        start = stream.initial_offset()
        label = {"alert": "a1", "rule": "testing", "label": "confirmed", "by": "ann"}
        with service.log() as log:
            log.create([TopicSpec("s-labels", 1)])
            log.append([Append(topic="s-labels", records=[(b"a1", json.dumps(label).encode())])])
        ((end, (row,)),) = followed(stream, start)
        assert row["alert"] == "a1"
        with service.log() as log:
            grow(service, "s-labels", 2)
            log.append([Append(topic="s-labels", records=[(b"a2", json.dumps(label).encode())], partition=1)])
        ((_, (row,)),) = followed(stream, end)
        assert (row["_partition"], row["_offset"]) == (1, 0)


def grow(service: Service, topic: str, partitions: int) -> None:
    """What Kafka's own commands do to a topic."""
    folder = service.settings.log.embedded
    assert folder is not None
    with closing(connect(folder / "log.db")) as file:
        (number,) = file.execute("SELECT number FROM topic WHERE name = ?", (topic,)).fetchone()
        file.execute("UPDATE topic SET partitions = ? WHERE number = ?", (partitions, number))
        add = "INSERT INTO partition (topic, partition, begin, end, cleaned) VALUES (?, ?, 0, 0, 0)"
        file.execute(add, (number, partitions - 1))


def test_a_topic_that_was_made_again_is_refused(service: Service) -> None:
    with opened(service, "dead-letters") as stream:
        *_, (end, _) = followed(stream)
        with service.log() as log:
            (topic,) = log.topics(["s-dead-letters"]).values()
            log.delete([topic.name])
            with pytest.raises(Refused) as refused:
                stream.latest_offset()
            log.create([TopicSpec(topic.name, topic.partitions, topic.settings)])
        assert refused.value.code == "topic-recreated"
        with pytest.raises(Refused) as refused:
            stream.latest_offset()
        assert refused.value.code == "topic-recreated"
    with opened(service, "dead-letters") as stream, pytest.raises(Refused) as refused:
        stream.parts(end, end)
    assert "checkpointLocation" in refused.value.hint


def test_records_that_retention_took_are_refused_or_passed_over(service: Service) -> None:
    with opened(service, "dead-letters") as stream:
        start, end = stream.initial_offset(), stream.latest_offset()
        parts = stream.parts(start, end)
        service.clock.pass_ms(400 * 86_400_000)
        with service.log() as log:
            log.compact("s-dead-letters")
        with pytest.raises(Refused) as refused:
            stream.parts(start, end)
        assert refused.value.code == "log-truncated"
        assert "failOnDataLoss" in refused.value.hint
        with pytest.raises(Refused) as refused:  # where it was planned before
            list(stream.read(parts[0]))
        assert refused.value.code == "offset-gone"
    with service.log() as log:
        log.append([Append(topic="s-dead-letters", records=[(None, b"x")], partition=0)])
    with opened(service, "dead-letters", failOnDataLoss="false") as stream:
        ((_, (row,)),) = followed(stream, start)
        assert row["text"] == "x"


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"source": "changelog"}, "mode"),
        ({"source": "alerts", "to": "5"}, "AvailableNow"),
        ({"source": "alerts", "maxRecordsPerTrigger": "0"}, "10000"),
        ({"source": "alerts", "startingOffset": "latest"}, "startingOffsets"),
    ],
)
def test_what_cannot_be_streamed(service: Service, options: dict[str, str], word: str) -> None:
    with pytest.raises(Refused) as refused:
        stream_of({"config": str(service.config), **options})
    assert (refused.value.code, word in str(refused.value)) == ("frame-option", True)


def test_a_checkpoint_of_another_format_is_refused() -> None:
    with pytest.raises(Refused) as refused:
        StreamOffsets.of({"v": 2, "topics": {}})
    assert refused.value.code == "format-newer"


# ---------------------------------------------------------------- through Spark


class Query:
    """A streaming query whose rows are gathered by batch; it can be told to fail."""

    def __init__(self, spark: OpenSession, service: Service, checkpoint: Path, **options: str) -> None:
        samovar.register_spark(spark.spark)
        self.spark, self.checkpoint = spark, checkpoint
        self.options = {"config": str(service.config), "source": "inputs/purchase", **options}
        self.batches: dict[int, list[tuple[int, int]]] = {}
        self.fails_at: int | None = None

    def run(self, **trigger: Any) -> None:
        """Until all that is there is read."""

        def take(frame: Any, number: int) -> None:
            rows = [(row._partition, row._offset) for row in frame.select("_partition", "_offset").collect()]
            if number == self.fails_at:
                raise ValueError("told to fail")
            self.batches[number] = sorted(rows)

        frame = self.spark.spark.readStream.format("samovar").options(**self.options).load()
        writer = frame.writeStream.foreachBatch(take).option("checkpointLocation", str(self.checkpoint))
        with translated(self.spark.log):
            query = writer.trigger(**trigger).start() if trigger else writer.start()
            try:
                query.awaitTermination() if trigger else query.processAllAvailable()
            finally:
                query.stop()

    @property
    def rows(self) -> list[tuple[int, int]]:
        return sorted(row for rows in self.batches.values() for row in rows)


def test_spark_reads_every_row_once(spark: OpenSession, service: Service, tmp_path: Path) -> None:
    """Through a batch that fails, and restarts: all of it from one checkpoint, in batches as small as was asked for."""
    query = Query(spark, service, tmp_path / "limited", maxRecordsPerTrigger="15")
    query.fails_at = 1
    with pytest.raises(Refused):
        query.run()
    assert [len(rows) for rows in query.batches.values()] == [15]
    query.fails_at = None
    query.run()
    service.produce(many(5, start_s=9_000))
    query.run()
    assert query.rows == sorted((row["_partition"], row["_offset"]) for row in of_frame(service, "inputs/purchase"))
    assert [len(rows) for rows in query.batches.values() if rows] == [15, 15, 11, 5]


def test_available_now_reads_all_and_ends(spark: OpenSession, service: Service, tmp_path: Path) -> None:
    query = Query(spark, service, tmp_path / "now")
    query.run(availableNow=True)
    assert len(query.rows) == 41
    service.produce(many(5, start_s=9_000))
    query.run(availableNow=True)
    assert query.rows == sorted((row["_partition"], row["_offset"]) for row in of_frame(service, "inputs/purchase"))
    service.produce(many(5, start_s=10_000))
    query.options["maxRecordsPerTrigger"] = "2"  # Spark 4.0 makes one batch of it: the next run goes on
    for wanted in (2, 2, 1):
        query.run(availableNow=True)
        assert len(query.batches[max(query.batches)]) == wanted
    assert query.rows == sorted((row["_partition"], row["_offset"]) for row in of_frame(service, "inputs/purchase"))
