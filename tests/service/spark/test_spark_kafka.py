"""Spark on a real broker: what a changelog has there that the embedded log has not, and Spark's own connector."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from confluent_kafka import Producer, admin
from confluent_kafka import TopicPartition as KafkaPlace

import samovar
import samovar.spark
from samovar.changelog.broker.process import wait_for
from samovar.changelog.cursors import read_all
from samovar.changelog.formats.dead_letters import PREFIX
from samovar.changelog.formats.record import POSITION
from samovar.changelog.kafka.java import JavaSettings, java_settings
from samovar.changelog.log import Append, Log, Pair, TopicPartition, TopicSpec
from samovar.changelog.restore.restore import stuck
from samovar.changelog.spark import records as spark_records
from samovar.changelog.spark.connector_log import Range, SparkFeed
from samovar.changelog.spark.parts import PartRanges, spread_over
from samovar.changelog.spark.progress import JobProgress, Ticker
from samovar.changelog.spark.records import raw_records
from samovar.changelog.spark.session import OpenSession
from samovar.changelog.spark.views import known_tables
from samovar.common.errors import Refused
from samovar.service.config.loading import load_service
from samovar.service.recovery.restore.plan import RestoreRequest, plan_restore
from samovar.service.recovery.restore.run import restore_all
from samovar.service.spark.jobs import JobPart, ShippedService, arrived, ranges_of, shipped, stage
from samovar.service.spark.restore import OnSpark
from samovar.service.topology.logs import opened
from samovar.service.topology.stores import site_of
from samovar.service.views.sources import Sources, bounds_of
from samovar.state.memory import MemoryStore
from samovar.tasks.replay.rebuild import ReplayEnd, rebuild
from tests.service.spark.test_streams import followed
from tests.service.spark.test_streams import opened as opened_stream
from tests.support.small_service import RULES, Service, make, many, restored, run, run_apart, wipe

SPREAD = "rule: spread\nmatch: |\n  aggregate by country over 1m [purchase where true] having distinct(card) >= 4\n"
PATIENCE_S = 120.0  # the broker's cleaner looks every 15 s


@dataclass(frozen=True)
class OnKafka:
    """A service that ran with three versions of a rule; its changelog has tombstones and an aborted transaction."""

    service: Service
    kafka: str
    name: str

    @property
    def changelog(self) -> str:
        return f"{self.name}-changelog"


@pytest.fixture(scope="module")
def ran(kafka: str, tmp_path_factory: pytest.TempPathFactory) -> OnKafka:
    name = f"spark-{uuid.uuid4().hex[:8]}"
    folder = tmp_path_factory.mktemp("spark-kafka")
    service = make(folder / "s")
    text = service.config.read_text().replace("service: s", f"service: {name}")
    text = text.replace("{key:", f"{{topic: {name}, key:")
    service.config.write_text(text + f'log: {{kafka: {{bootstrap: "{kafka}"}}}}\n')
    found = OnKafka(service, kafka, name)
    for number, limit in enumerate((200, 300, 400)):
        rule = RULES["testing"].replace("amount > 200", f"amount > {limit}")
        (service.config.parent / "rules" / "testing.yml").write_text(rule)
        events = folder / f"events-{number}.jsonl"
        events.write_text("".join(json.dumps(event) + "\n" for event in many(150, start_s=number * 3_000)))
        assert run("produce", service.config, "purchase", events).exit_code == 0
        went = run_apart("run", service.config, "--until-caught-up")
        assert went.returncode == 0, went.stderr
        aborted(found)
    return found


def aborted(on: OnKafka) -> None:
    """A writer that gave up: rows and a position that never count."""
    with writer(on) as producer:
        for partition in (0, 1):
            for key in (b"rnever", POSITION):
                producer.produce(on.changelog, b"junk", key, partition)
        assert producer.flush(30) == 0
        producer.abort_transaction(30)


class writer:  # noqa: N801 - used as a context
    def __init__(self, on: OnKafka) -> None:
        settings = {"bootstrap.servers": on.kafka, "transactional.id": uuid.uuid4().hex}
        self.producer = Producer({**settings, "transaction.timeout.ms": 300_000})

    def __enter__(self) -> Producer:
        self.producer.init_transactions(30)
        self.producer.begin_transaction()
        return self.producer

    def __exit__(self, *_: object) -> None:
        self.producer.flush(30)


def raw(log: Log, topic: str) -> list[tuple[int, int, bytes | None, bytes | None]]:
    """All committed records of a topic of two partitions."""
    return [
        (each.partition, int(offset), key, value)
        for partition in (0, 1)
        for each in read_all(log, TopicPartition(topic, partition))
        for offset, (key, value) in zip(each.offsets, each.pairs(), strict=True)
    ]


@pytest.fixture
def log(ran: OnKafka) -> Iterator[Log]:
    with opened(load_service(ran.service.config)) as found:
        yield found


# ---------------------------------------------------------------- restore


def test_p2_spark_local_and_live_are_one(spark: OpenSession, ran: OnKafka, log: Log) -> None:
    """P2: several partitions, three versions of a rule, tombstones, aborted transactions."""
    before = ran.service.digests()
    assert any(value is None for _, _, _, value in raw(log, ran.changelog))
    assert both_engines(ran) == before
    assert run("verify", ran.service.config, "--engine", "spark").exit_code == 0


def test_p2_by_our_own_reader_it_is_the_same(spark: OpenSession, ran: OnKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """P2: a tunable changes no result, also not who reads Kafka for a job."""
    asked = list[object]()
    monkeypatch.setattr("samovar.changelog.spark.parts.raw_records", lambda *each, **_: asked.append(each))
    monkeypatch.setenv("SAMOVAR_TUNABLES__SPARK_CONNECTOR", "false")
    before = ran.service.digests()
    assert both_engines(ran) == before
    assert run("verify", ran.service.config, "--engine", "spark").exit_code == 0
    assert not asked


def both_engines(ran: OnKafka) -> dict[int, str]:
    """The digests that a restore of lost stores ends with, the same by both engines."""
    found = []
    for engine in ("spark", "local"):
        wipe(ran.service)
        done = restored(ran.service, "--engine", engine, "--from", "changelog")
        found.append({each["partition"]: (each["digest"], each["offset"]) for each in done["restored"]})
    assert found[0] == found[1]
    assert ran.service.digests() == {partition: digest for partition, (digest, _) in found[0].items()}
    return ran.service.digests()


def test_p7_an_open_transaction_is_waited_for(spark: OpenSession, ran: OnKafka, log: Log) -> None:
    """The high watermark is above it: the job ends when the writer has, and what was aborted is in no store."""
    site = site_of(load_service(ran.service.config), log)
    live = ran.service.digests()
    last = [value for partition, _, key, value in raw(log, ran.changelog) if partition == 0 and key == POSITION][-1]
    with writer(ran) as producer:
        producer.produce(ran.changelog, b"junk", POSITION, 0)
        assert producer.flush(30) == 0
        log.append([Append(topic=ran.changelog, records=[(POSITION, last)], partition=0)])  # above it, and committed
        at = TopicPartition(ran.changelog, 0)
        above = (0, log.bounds([at])[at].end - 1)
        quiet = {"failOnDataLoss": "false", "kafkaConsumer.pollTimeoutMs": "2000"}
        # Left alone, Spark's connector ends before the transaction and says nothing: so ranges are settled first.
        assert above not in {row[:2] for row in by_connector(spark, ran, log, **quiet)}
        seen: list[JobProgress] = []

        def on_job(now: JobProgress) -> None:
            if now.waits_for is not None and not seen:
                seen.append(now)
                producer.abort_transaction(30)

        asked = RestoreRequest(source="changelog", engine="spark")
        plans = plan_restore(site, asked, 0)
        assert plans[0].end == log.bounds([plans[0].changelog.at])[plans[0].changelog.at].end  # type: ignore[union-attr]
        engine = OnSpark(spark, on_job)
        with engine.tables(site):
            done = list(restore_all(site, asked, plans, lambda *_: None, engine))
    assert seen, "it ended while the transaction was open"
    assert f"{ran.changelog}/0" in seen[0].text()
    assert {each.partition: each.digest for each in done} == live
    assert done[0].offset == plans[0].end


def test_p2_after_the_broker_compacted(spark: OpenSession, ran: OnKafka, log: Log) -> None:
    """Gaps are not data loss."""
    before, records = ran.service.digests(), len(raw(log, ran.changelog))
    lag = "min.compaction.lag.ms"
    quick = {"segment.ms": "100", lag: "0", "min.cleanable.dirty.ratio": "0.01", "max.compaction.lag.ms": "1000"}
    alter_changelog(ran, quick)

    def has_gaps() -> bool:
        for partition in (0, 1):  # a new segment, so that the one before can be cleaned
            rows = [value for at, _, key, value in raw(log, ran.changelog) if at == partition and key == POSITION]
            log.append([Append(topic=ran.changelog, records=[(POSITION, rows[-1])], partition=partition)])
        return len(raw(log, ran.changelog)) < records

    assert wait_for(has_gaps, PATIENCE_S)
    assert both_engines(ran) == before
    alter_changelog(ran, {**dict.fromkeys(quick), lag: "86400000"})  # the service refuses other settings


def alter_changelog(on: OnKafka, settings: Mapping[str, str | None]) -> None:
    """Settings of its topic; None goes back to the broker's."""
    tools: Any = admin  # not all of it has types
    operation = tools.AlterConfigOpType
    entries = [
        tools.ConfigEntry(name, value, incremental_operation=operation.DELETE if value is None else operation.SET)
        for name, value in settings.items()
    ]
    client = tools.AdminClient({"bootstrap.servers": on.kafka})
    resource = tools.ConfigResource(tools.ResourceType.TOPIC, on.changelog, incremental_configs=entries)
    for future in client.incremental_alter_configs([resource]).values():
        future.result(30)


# ---------------------------------------------------------------- from the source


@dataclass(frozen=True)
class Fold:
    service: ShippedService
    partition: int
    until: ReplayEnd


def ids_of(fold: Fold, tick: Ticker, feed: SparkFeed | None) -> list[str]:
    """On an executor: the matches of a fold, as `--from source` does it."""
    found: list[str] = []

    def on_alerts(alerts: Any) -> None:
        pairs: list[Pair] = list(alerts)
        found.extend(json.loads(value)["id"] for _, value in pairs if value is not None)

    with arrived(fold.service, "", feed) as site:
        rebuild(site.log, site.plan, fold.partition, MemoryStore(), fold.until, on_alerts, tick)
    return found


def test_p1_the_source_folded_on_spark_finds_the_live_matches(spark: OpenSession, ran: OnKafka, log: Log) -> None:
    site = site_of(load_service(ran.service.config), log)
    plans = plan_restore(site, RestoreRequest(source="source", out=ran.service.config.parent / "none"), 0)
    folds = [
        PartRanges(Fold(shipped(site), each.partition, each.until), ranges_of(site, each))
        for each in plans
        if each.until is not None
    ]
    kafka = {"bootstrap.servers": ran.kafka}
    found = sorted(each for ids in spread_over(spark, "ids", log, kafka, folds, ids_of) for each in ids)
    live = sorted(json.loads(value or b"{}")["id"] for _, _, _, value in raw(log, f"{ran.name}-alerts"))
    assert len(live) > 10
    assert found == live


# ---------------------------------------------------------------- the connector


def test_the_connector_and_the_data_source_see_the_same(spark: OpenSession, ran: OnKafka, log: Log) -> None:
    """The same topic by Spark's own connector, by ours and by the service's reader: committed records, all of them."""
    samovar.register_spark(spark.spark)
    config = str(ran.service.config)
    ours = spark.spark.read.format("samovar").options(config=config, source="inputs/purchase", raw="true").load()
    theirs = (
        spark.spark.read.format("kafka")
        .option("kafka.bootstrap.servers", ran.kafka)
        .option("kafka.isolation.level", "read_committed")
        .option("subscribe", ran.name)
        .load()
        .selectExpr("partition", "offset", "timestamp", "cast(key as string)", "cast(value as string)")
    )
    columns = ["_partition", "_offset", "_time", "_key", "_value"]
    told = sorted(map(tuple, theirs.collect()))
    assert sorted(map(tuple, ours.select(*columns).collect())) == told
    assert [(each[0], each[1]) for each in told] == [(each[0], each[1]) for each in sorted(raw(log, ran.name))]


def test_a_batch_of_a_stream_ends_before_an_open_transaction(ran: OnKafka, log: Log) -> None:
    """What it brings comes with a later batch; what is given up, never. Markers of transactions are passed over."""
    topic = TopicPartition(ran.name, 0)
    with opened_stream(ran.service, "inputs/purchase", partitions="0", startingOffsets="latest", raw="true") as stream:
        with writer(ran) as producer:
            begun = stream.initial_offset()
            producer.produce(topic.topic, b"open", b"k", topic.partition)
            assert producer.flush(30) == 0
            log.append([Append(topic=topic.topic, records=[(b"k", b"after")], partition=topic.partition)])
            assert stream.latest_offset() == begun
            producer.abort_transaction(30)
        ((end, rows),) = followed(stream, begun)
        assert [row["_value"] for row in rows] == ["after"]
        with writer(ran) as producer:
            producer.produce(topic.topic, b"kept", b"k", topic.partition)
            producer.commit_transaction(30)
        ((_, rows),) = followed(stream, end)
        assert [row["_value"] for row in rows] == ["kept"]


def by_connector(
    spark: OpenSession, ran: OnKafka, log: Log, **options: str
) -> list[tuple[int, int, bytes | None, bytes | None]]:
    """The changelog as Spark's connector reads it, up to the high watermark: `latest` is the last stable offset."""
    ends = {at: log.bounds([at])[at].end for at in (TopicPartition(ran.changelog, 0), TopicPartition(ran.changelog, 1))}
    places = {ran.changelog: {str(at.partition): end for at, end in ends.items()}}
    frame = (
        spark.spark.read.format("kafka")
        .option("kafka.bootstrap.servers", ran.kafka)
        .option("kafka.isolation.level", "read_committed")
        .option("subscribe", ran.changelog)
        .option("endingOffsets", json.dumps(places))
        .options(**options)
        .load()
    )
    rows = frame.select("partition", "offset", "key", "value").collect()
    return sorted((row[0], row[1], bytes(row[2]), row[3] and bytes(row[3])) for row in rows)


def test_a_changelog_with_aborted_transactions_by_the_connector(spark: OpenSession, ran: OnKafka, log: Log) -> None:
    assert by_connector(spark, ran, log) == sorted(raw(log, ran.changelog))


# ---------------------------------------------------------------- records by the connector


@pytest.mark.parametrize("source", ["changelog", "source"])
def test_all_records_of_a_restore_come_by_the_connector(
    spark: OpenSession, ran: OnKafka, log: Log, tmp_path: Path, source: str
) -> None:
    """What executors do, done here: none of what is restored is read by our own client."""
    site = site_of(load_service(ran.service.config), log)
    live, given = ran.service.digests(), 0
    for planned in plan_restore(site, RestoreRequest(source=source, out=tmp_path / "none"), 0):
        ranges = ranges_of(site, planned)
        frame = raw_records(spark, {"bootstrap.servers": ran.kafka}, ranges)
        feed = SparkFeed(ranges, iter(frame.toArrow().to_batches(100)))
        staged = stage(JobPart(shipped(site), planned, tmp_path), Ticker(None, ""), feed)
        assert staged.manifest.digest == live[planned.partition]
        within = [
            row
            for each in ranges
            for row in raw(log, each.at.topic)
            if row[0] == each.at.partition and each.start <= row[1] < each.end
        ]
        assert feed.given == len(within)
        given += feed.given
    assert given > 20


def test_all_tables_of_views_by_the_connector_are_those_of_the_reader(
    spark: OpenSession, ran: OnKafka, log: Log, tmp_path: Path
) -> None:
    """Also what stands in headers alone: why a message is a dead letter, how late an event was."""
    settings = load_service(ran.service.config)
    dead = ((PREFIX + "exception", b"JSON_SYNTAX"), (PREFIX + "topic", ran.name.encode()), (PREFIX + "offset", b"7"))
    late = (("samovar.late.ms", b"1500"), ("samovar.stream", b"purchase"))
    log.append([Append(topic=settings.dead_letters.topic, records=[(b"c1", b"{")], partition=0, headers=[dead])])
    log.append([Append(topic=settings.late.topic, records=[(b"c1", b"{}")], partition=0, headers=[late])])
    sources = Sources(settings, log)
    found: dict[str, list[list[Any]]] = {}
    for name in sources:
        theirs = sources.table(name, bounds_of(sources.frame(name)))
        ours = replace(theirs, kafka=None)
        assert (ours.kafka, theirs.kafka is not None) == (None, True)
        rows = []
        for table in (ours, theirs):
            with known_tables(spark, [table], tmp_path):
                values = spark.spark.table(name).limit(10_000).collect()
            rows.append(sorted([[repr(each) for each in value] for value in values]))
        assert rows[0] == rows[1], name
        found[name] = rows[1]
    assert {name for name, rows in found.items() if not rows} <= {"sessions", "labels"}
    assert "'JSON_SYNTAX'" in found["dead_letters"][0]
    assert "1500" in found["late"][0]


def test_a_backtest_gives_what_the_local_engine_gives(spark: OpenSession, ran: OnKafka, tmp_path: Path) -> None:
    """One rule a partition, another over both by turns; and one that ends long before its input does."""
    folder = tmp_path / "rules"
    folder.mkdir()
    (folder / "testing.yml").write_text(RULES["testing"])
    (folder / "spread.yml").write_text(SPREAD)

    def found(engine: str, *options: str) -> dict[str, Any]:
        done = run("rules", "backtest", folder, ran.service.config, "--json", "--engine", engine, *options)
        assert done.exit_code == 0, done.output
        data: dict[str, Any] = json.loads(done.stdout)
        return {name: value for name, value in data.items() if name not in ("engine", "seconds", "events_per_s")}

    for options in ((), ("--to", "2026-01-05T08:03:00Z")):
        local = found("local", *options)
        assert found("spark", *options) == local
        assert all(each["found"] > 0 for each in local["rules"]), options


def test_ranges_that_hold_nothing_visible_and_records_that_are_gone(spark: OpenSession, ran: OnKafka, log: Log) -> None:
    topic = f"{ran.name}-odd"
    log.create([TopicSpec(topic, 3)])
    with writer(ran) as producer:
        for partition in (0, 1):
            producer.produce(topic, b"junk", b"k", partition)
        assert producer.flush(30) == 0
        producer.abort_transaction(30)
    log.append([Append(topic=topic, records=[(b"k", b"%d" % number) for number in range(10)], partition=1)])
    places = [TopicPartition(topic, partition) for partition in range(3)]
    kafka = {"bootstrap.servers": ran.kafka}

    def counts() -> list[int]:
        bounds = log.bounds(places)
        parts = [PartRanges(at, (Range(at, 0, bounds[at].end),)) for at in places]
        return spread_over(spark, "count", log, kafka, parts, count_records)

    assert counts() == [0, 10, 0]  # only an aborted transaction, that and records, nothing
    client: Any = admin.AdminClient({"bootstrap.servers": ran.kafka})
    for future in client.delete_records([KafkaPlace(topic, 1, 6)]).values():
        future.result(30)
    with pytest.raises(Refused) as refused:
        counts()
    assert refused.value.code == "log-truncated"
    assert f"{topic}-1" in refused.value.what


def test_partitions_of_one_number_in_two_topics_are_two_parts(spark: OpenSession, ran: OnKafka, log: Log) -> None:
    """As the changelogs of two stages have them."""
    places = [TopicPartition(f"{ran.name}-{name}", 0) for name in ("one", "other")]
    log.create([TopicSpec(at.topic, 1) for at in places])
    for at, count in zip(places, (10, 4), strict=True):
        log.append([Append(topic=at.topic, records=[(b"k", b"%d" % number) for number in range(count)], partition=0)])
    parts = [PartRanges(at, (Range(at, *log.bounds([at])[at]),)) for at in places]
    assert spread_over(spark, "count", log, {"bootstrap.servers": ran.kafka}, parts, count_records) == [10, 4]


def count_records(at: TopicPartition, tick: Ticker, feed: SparkFeed | None) -> int:
    """On an executor. It reads one batch, and leaves what comes after it."""
    assert feed is not None
    found = feed.take(at)
    return 0 if found is None else len(found)


def test_spark_shows_no_secret(spark: OpenSession, ran: OnKafka, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not in a plan, on its pages, nor in its log: a job with a line of JAAS among its options."""
    secret = "canary-4711"
    sasl = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.password": secret, "ssl.ca.pem": secret}
    given = {"bootstrap.servers": ran.kafka}
    secured = {**java_settings(given | sasl).settings, "security.protocol": "PLAINTEXT"}  # which the broker speaks
    assert sum(secret in value for value in secured.values()) == 2
    monkeypatch.setattr(spark_records, "java_settings", lambda _: JavaSettings(secured, ()))
    at = TopicPartition(ran.name, 0)
    frame = raw_records(spark, given, [Range(at, *log.bounds([at])[at])])
    assert frame.count() > 0
    plan: Any = frame._jdf.queryExecution()
    shown = [plan.toString(), plan.explainString(plan_mode(spark, "extended")), plan.logical().toJSON()]
    context = spark.spark.sparkContext
    with urlopen(f"{spark.ui}/api/v1/applications/{context.applicationId}/sql?details=true&length=1000") as page:
        shown.append(page.read().decode())
    assert all("offset" in each for each in shown)
    assert spark.log is not None
    shown.append(spark.log.read_text())
    assert not [each for each in shown if secret in each]


def plan_mode(spark: OpenSession, name: str) -> Any:
    jvm: Any = spark.spark._jvm
    return jvm.org.apache.spark.sql.execution.ExplainMode.fromString(name)


def test_an_open_transaction_is_refused_in_time(ran: OnKafka, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_records, "STUCK_S", 0.5)
    topic = f"{ran.name}-open"
    log.create([TopicSpec(topic, 1)])
    at = TopicPartition(topic, 0)
    with writer(ran) as producer:
        producer.produce(topic, b"open", b"k", 0)
        assert producer.flush(30) == 0
        with pytest.raises(Refused) as refused:
            spark_records.settle(log, [Range(at, 0, log.bounds([at])[at].end)], stuck)  # type: ignore[arg-type]
        producer.abort_transaction(30)
    assert refused.value.code == "restore-stuck"
    assert f"{at} came for 120 s, at offset 0 of 1" in refused.value.what


# ---------------------------------------------------------------- streams by Spark's own source


@pytest.mark.parametrize("source", ["inputs/purchase", "alerts", "alerts/testing", "dead-letters", "late"])
def test_a_stream_by_sparks_source_has_the_rows_of_ours(
    ran: OnKafka, spark: OpenSession, tmp_path: Path, source: str
) -> None:
    """In batches, and from one start of the query to the next."""
    post_bad(ran)
    found: list[str] = []

    def run_query(**options: str) -> None:
        frame = samovar.spark.read_stream(spark.spark, ran.service.config, source, **options)
        assert frame.columns == samovar_frame.columns
        writer = frame.writeStream.foreachBatch(lambda batch, _: found.extend(map(repr, batch.collect())))
        query = writer.option("checkpointLocation", str(tmp_path)).start()
        try:
            query.processAllAvailable()
        finally:
            query.stop()

    samovar.register_spark(spark.spark)
    reader = spark.spark.read.format("samovar").options(config=str(ran.service.config), source=source)
    samovar_frame = reader.load()
    if source == "inputs/purchase":
        run_query(maxRecordsPerTrigger="300")
        assert found
        post_bad(ran)
    run_query()
    wanted = sorted(map(repr, reader.load().collect()))
    assert sorted(found) == wanted
    assert wanted or source == "late"


def post_bad(on: OnKafka) -> None:
    """A message that is no event, and its letter."""
    with opened(on.service.settings) as log:
        log.append([Append(topic=on.name, records=[(b"c1", b"{no json")])])
    went = run_apart("run", on.service.config, "--until-caught-up")
    assert went.returncode == 0, went.stderr


def test_where_a_stream_by_sparks_source_begins(ran: OnKafka, spark: OpenSession) -> None:
    def rows(**options: str) -> list[tuple[int, int]]:
        frame = samovar.spark.read_stream(spark.spark, ran.service.config, "inputs/purchase", **options)
        name = f"q{uuid.uuid4().hex}"
        frame.writeStream.format("memory").queryName(name).trigger(availableNow=True).start().awaitTermination()
        return sorted((row._partition, row._offset) for row in spark.spark.table(name).collect())

    everything = rows()
    assert rows(partitions="1") == [each for each in everything if each[0] == 1]
    with opened(ran.service.settings) as log:
        bounds = log.bounds([TopicPartition(ran.name, number) for number in (0, 1)])
    ends = {at.partition: bounds[at].end for at in bounds}
    assert rows(**{"from": "-1"}) == [(at, offset) for at, offset in everything if offset >= ends[at] - 1]
    assert rows(startingOffsets="latest") == []


def test_settings_of_kafka_are_in_no_plan(ran: OnKafka, spark: OpenSession) -> None:
    config = ran.service.config.with_name("secret.yml")
    secret = f'log: {{kafka: {{bootstrap: "{ran.kafka}", ssl.key.password: "never-shown"}}}}\n'
    config.write_text(ran.service.config.read_text().rpartition("log:")[0] + secret)
    frame: Any = samovar.spark.read_stream(spark.spark, config, "inputs/purchase")
    query = frame.writeStream.format("noop").trigger(availableNow=True).start()
    query.awaitTermination()
    for text in (frame._jdf.queryExecution().toString(), query._jsq.explainInternal(True), str(query.lastProgress)):
        assert "never-shown" not in text
