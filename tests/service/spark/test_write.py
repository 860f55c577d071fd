"""`df.write.format("samovar")` and `writeStream`: rows become events of a stream, once."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import samovar
from samovar.changelog.spark.errors import translated
from samovar.changelog.spark.session import OpenSession
from samovar.common.errors import Refused
from samovar.service.spark.write import EventSink, read_batch, sink_of
from samovar.service.topology.logs import opened, sole_member
from tests.service.spark.test_streams import of_frame
from tests.support.small_service import START, Service, make, many, purchase

AVRO = {
    "type": "record", "name": "P", "fields": [
        {"name": "card", "type": "string"}, {"name": "amount", "type": "double"}, {"name": "ts", "type": "long"},
    ],
}  # fmt: skip


@pytest.fixture
def service(tmp_path: Path) -> Service:
    return make(tmp_path / "s")


def sink(service: Service, **options: str) -> EventSink:
    return sink_of({"config": str(service.config), "stream": "purchase", **options}, "struct<>", is_stream=False)


def events(service: Service) -> list[tuple[Any, ...]]:
    """What the stream holds, as its frame has it."""
    rows = of_frame(service, "inputs/purchase")
    assert [row["_error"] for row in rows] == [None] * len(rows)
    return sorted((row["_key"], row["_event_time"], row["amount"], row["_partition"]) for row in rows)


def moment(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


# ---------------------------------------------------------------- rows


@pytest.fixture
def new_york(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The zone of the process."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "America/New_York")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("new_york")
def test_rows_become_events_as_produce_writes_them(service: Service) -> None:
    """With the stream's key and its partition; columns of ours give time and type, and are no fields."""
    instant = moment(START)
    rows: list[Mapping[str, Any]] = [
        {"card": "c1", "amount": 1.5, "ts": START, "country": None},
        {"card": "c1", "amount": Decimal(2), "ts": instant.astimezone().replace(tzinfo=None)},  # as Spark gives it
        {"card": "c2", "amount": 3, "_event_time": instant, "_partition": 9, "_error": None},
    ]
    to = sink(service)
    text = json.dumps({"card": "c3", "amount": 4, "ts": START}, indent=1)
    to.commit([to.pack(iter(rows)), to.pack(iter([{"value": text}]))], None)
    cards = {"c1": service.partition("c1"), "c2": service.partition("c2"), "c3": service.partition("c3")}
    assert events(service) == [
        ("c1", instant, 1.5, cards["c1"]), ("c1", instant, 2.0, cards["c1"]),
        ("c2", instant, 3.0, cards["c2"]), ("c3", instant, 4.0, cards["c3"]),
    ]  # fmt: skip
    assert [json.loads(row["_value"]) for row in of_frame(service, "inputs/purchase", raw="true", key="c2")] == [
        {"card": "c2", "amount": 3, "ts": START}
    ]


def test_a_stream_in_avro(service: Service) -> None:
    (service.config.parent / "p.avsc").write_text(json.dumps(AVRO))
    text = service.config.read_text().replace(
        "schema: {card: string, amount: double, country: string}", "format: avro, schema: p.avsc"
    )
    service.config.write_text(text)
    for path in (service.config.parent / "rules").glob("*.yml"):
        path.unlink()
    (service.config.parent / "rules" / "any.yml").write_text(
        "rule: any\nmatch: |\n  sequence by card with maxspan=1m [purchase where amount > 5] as p\n"
    )
    to = sink(service)
    to.commit([to.pack(iter([{"card": "c1", "amount": 1.5, "ts": START}]))], None)
    assert events(service) == [("c1", moment(START), 1.5, service.partition("c1"))]
    with pytest.raises(Refused) as refused:
        to.commit([to.pack(iter([{"card": "c1", "ts": START}]))], None)
    assert refused.value.code == "bad-events"


def test_bad_rows_are_refused_or_kept(service: Service, tmp_path: Path) -> None:
    rows = [purchase("c1", 1, 5), {"card": "c2", "amount": 1}, purchase("c3", 1, 5)]
    rows += [{"card": f"x{n}", "amount": 1} for n in range(30)]
    to = sink(service)
    with pytest.raises(Refused) as refused:
        to.commit([to.pack(iter(rows[:2])), to.pack(iter(rows[2:]))], None)
    assert refused.value.code == "bad-events"
    assert refused.value.what.startswith("31 rows are no event")
    assert not (service.config.parent / ".samovar" / "log").exists()  # it was not even opened
    assert '"card": "c2"' in refused.value.detail
    to = sink(service, badRows=str(tmp_path / "bad"))
    to.commit([to.pack(iter(rows[:2])), to.pack(iter(rows[2:]))], None)
    (file,) = (tmp_path / "bad").iterdir()
    kept = [json.loads(line) for line in file.read_text().splitlines()]
    assert (len(kept), len(events(service))) == (31, 2)
    assert json.loads(kept[0]["row"]) == {"card": "c2", "amount": 1}
    assert {line["reason"] for line in kept} == {"MISSING_TIME"}


# ---------------------------------------------------------------- batches of a query


def test_a_batch_that_is_repeated_is_written_once(service: Service) -> None:
    to = sink(service, query="q")
    for batch in (0, 1, 1, 0):
        to.commit([to.pack(iter([purchase("c1", batch, 5)]))], batch)
    assert [row[1] for row in events(service)] == [moment(START), moment(START + 1_000)]
    other = sink(service, query="r")
    other.commit([other.pack(iter([purchase("c1", 7, 5)]))], 0)
    other.commit([], 1)
    assert len(events(service)) == 3
    with opened(service.settings) as log:
        assert (read_batch(log, "s-spark", "q"), read_batch(log, "s-spark", "r")) == (1, 1)


def test_a_batch_that_is_repeated_on_kafka(service: Service, kafka: str) -> None:
    name = f"write-{uuid.uuid4().hex[:8]}"
    text = service.config.read_text().replace("service: s", f"service: {name}")
    text = text.replace("{key:", f"{{topic: {name}, key:")
    service.config.write_text(text + f'log: {{kafka: {{bootstrap: "{kafka}"}}}}\n')
    to = sink(service, query="q")
    for batch in (0, 1, 1, 0):
        to.commit([to.pack(iter([purchase("c1", batch, 5)]))], batch)
    assert [row[1] for row in events(service)] == [moment(START), moment(START + 1_000)]


def test_of_a_query_that_runs_twice_one_writes(service: Service) -> None:
    to = sink(service, query="q")
    to.commit([to.pack(iter([purchase("c1", 0, 5)]))], 0)
    with opened(service.settings) as log, sole_member(log, "s-spark-q", "s-spark"), pytest.raises(Refused) as refused:
        to.commit([to.pack(iter([purchase("c1", 1, 5)]))], 1)
    assert refused.value.code == "slot-taken"
    assert len(events(service)) == 1


@pytest.mark.parametrize(
    ("options", "schema", "word"),
    [
        ({"stream": "purchases"}, "", "purchase"),
        ({"steam": "purchase"}, "", "stream"),
        ({}, "", "`stream`"),
        ({"stream": "purchase"}, "struct<ts:timestamp_ntz>", "timestamp"),
        ({"stream": "purchase", "checkpointLocation": "s3://b/c"}, "", "query"),
    ],
)
def test_what_cannot_be_written(service: Service, options: dict[str, str], schema: str, word: str) -> None:
    with pytest.raises(Refused) as refused:
        sink_of({"config": str(service.config), **options}, schema, is_stream=True)
    assert (refused.value.code, word in str(refused.value)) == ("frame-option", True)


# ---------------------------------------------------------------- through Spark


def test_spark_writes_frames_and_streams(spark: OpenSession, service: Service, tmp_path: Path) -> None:
    """From one service to another, also where a batch is repeated because nobody knows whether it ended."""
    samovar.register_spark(spark.spark)
    source = make(tmp_path / "source")
    source.produce(many(10))
    read = {"config": str(source.config), "source": "inputs/purchase"}
    write = {"config": str(service.config), "stream": "purchase"}
    frame = spark.spark.read.format("samovar").options(**read).load()
    frame.write.format("samovar").options(**write).mode("append").save()
    assert events(service) == events(source)
    with pytest.raises(Refused) as refused, translated(spark.log):
        frame.write.format("samovar").options(**write).mode("overwrite").save()
    assert refused.value.code == "frame-option"
    bad = spark.spark.sql("select 'c1' as card, 5.0 as amount")
    with pytest.raises(Refused) as refused, translated(spark.log):
        bad.write.format("samovar").options(**write).mode("append").save()
    assert (refused.value.code, "c1" in refused.value.detail) == ("bad-events", True)

    def copy() -> None:
        stream = spark.spark.readStream.format("samovar").options(**read, startingOffsets="latest").load()
        writer = stream.writeStream.format("samovar").options(**write).trigger(availableNow=True)
        with translated(spark.log):
            writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination()

    copy()  # which is empty, and says where to begin
    source.produce(many(10, start_s=1_000))
    copy()
    assert events(service) == events(source)
    for name in ("1", ".1.crc"):
        (tmp_path / "checkpoint" / "commits" / name).unlink()
    copy()
    assert events(service) == events(source)
