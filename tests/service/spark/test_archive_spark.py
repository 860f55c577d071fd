"""Spark and `samovar sql` on Kafka, where retention took what an archive has: files, then Spark's own connector."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from pyspark.errors import PySparkException

import samovar.spark
from samovar.changelog.kafka.read import places_of
from samovar.changelog.log import TopicPartition
from samovar.changelog.spark import parts, records
from samovar.changelog.spark.connector_log import Range
from samovar.changelog.spark.session import OpenSession
from samovar.service.config.loading import load_service
from samovar.service.topology.logs import opened
from tests.support.small_service import START, Service, make, many, restored, run, run_apart

TINY = "tunables: {archive_records: 17, archive_group_records: 5}\n"
SPREAD = "rule: spread\nmatch: |\n  aggregate by country over 1m [purchase where true] having distinct(card) >= 4\n"


@dataclass(frozen=True)
class Archived:
    """A service on Kafka whose archive has the beginning, and whose log gets more after it."""

    service: Service
    kafka: str
    places: Sequence[TopicPartition]
    copied: dict[TopicPartition, int]  # up to where

    def bounds(self) -> dict[TopicPartition, tuple[int, int]]:
        with opened(load_service(self.service.config)) as log:
            return {at: tuple(each) for at, each in log.bounds(list(self.places)).items()}  # type: ignore[misc]

    def take_away(self, begins: dict[TopicPartition, int]) -> None:
        """Retention does its worst."""
        admin, asked = AdminClient({"bootstrap.servers": self.kafka}), places_of(list(begins))
        for place in asked:
            place.offset = begins[TopicPartition(place.topic, place.partition)]
        for future in admin.delete_records(asked).values():
            future.result(30)
        assert {at: begin for at, (begin, _) in self.bounds().items()} == begins


@pytest.fixture
def archived(kafka: str, tmp_path: Path) -> Archived:
    name = f"arch-spark-{uuid.uuid4().hex[:8]}"
    service = make(tmp_path / "s")
    text = service.config.read_text().replace("service: s", f"service: {name}")
    text = text.replace("{key:", f"{{topic: {name}, key:")
    service.config.write_text(text + f'log: {{kafka: {{bootstrap: "{kafka}"}}}}\narchive: cold\n{TINY}')
    found = Archived(service, kafka, [TopicPartition(name, number) for number in (0, 1)], {})
    for number in range(2):
        events = tmp_path / f"events-{number}.jsonl"
        events.write_text("".join(json.dumps(event) + "\n" for event in many(120, start_s=number * 300)))
        assert run("produce", service.config, "purchase", events).exit_code == 0
        ran = run_apart("run", service.config, "--until-caught-up")
        assert ran.returncode == 0, ran.stderr
        if not number:
            assert run("archive", service.config).exit_code == 0
            found.copied.update({at: end for at, (_, end) in found.bounds().items()})
    return found


@pytest.fixture
def read(spark: OpenSession, monkeypatch: pytest.MonkeyPatch) -> list[Range]:
    """The ranges that Spark's connector was asked for."""
    asked: list[Range] = []
    own = records.raw_records

    def raw_records(session: Any, settings: Any, ranges: Sequence[Range], **more: Any) -> Any:
        asked.extend(each for each in ranges if each.start < each.end)
        return own(session, settings, ranges, **more)

    monkeypatch.setattr(parts, "raw_records", raw_records)
    return asked


def frame_rows(spark: OpenSession, service: Service, **options: str) -> list[Any]:
    samovar.spark.register(spark.spark)
    reader = (
        spark.spark.read.format("samovar").option("config", str(service.config)).option("source", "inputs/purchase")
    )
    return sorted(reader.options(**options).load().collect(), key=str)


def backtested(service: Service, *options: object) -> list[dict[str, Any]]:
    rules = service.config.parent / "rules"
    done = run("rules", "backtest", rules, service.config, "--json", "--engine", "spark", *options)
    assert done.exit_code == 0, done.output
    found: list[dict[str, Any]] = json.loads(done.stdout)["rules"]
    return found


def verified(service: Service) -> list[set[str]]:
    done = run("verify", service.config, "--json", "--engine", "spark")
    assert done.exit_code == 0, done.output
    return [set(each["digests"]) for each in json.loads(done.stdout)]


def asked_of_sql(service: Service, *options: object) -> str:
    query = (
        "select card, count(*) as n, sum(amount) as total, min(_offset) as first from purchase group by 1 order by 1"
    )
    done = run("sql", service.config, query, "--json", *options)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_p2_spark_reads_what_retention_took_from_the_archive_and_the_rest_by_its_connector(
    spark: OpenSession, archived: Archived, read: list[Range], tmp_path: Path
) -> None:
    """P1, P2: rows, a rebuild, a past state, a verdict and a backtest are those before retention."""
    service = archived.service
    (service.config.parent / "rules" / "spread.yml").write_text(SPREAD)  # a task reads all partitions

    def past(out: str) -> list[str]:
        asked = ("--from", "source", "--engine", "spark", "--to-time", START + 360_000, "--out", tmp_path / out)
        return [each["digest"] for each in restored(service, *asked)["restored"]]

    rows, found, state = frame_rows(spark, service), backtested(service), past("before")
    tables, digests = asked_of_sql(service), service.digests()
    assert len(rows) == 240
    assert all(each["found"] for each in found if each["rule"] == "spread")
    assert not any(each.is_rest for each in read)
    read.clear()
    archived.take_away({at: end // 2 for at, end in archived.copied.items()})
    ends = {at: end for at, (_, end) in archived.bounds().items()}
    assert frame_rows(spark, service) == rows
    assert backtested(service) == found
    assert past("after") == state
    assert verified(service) == [{"store", "changelog", "source"}] * 2
    restored(service, "--from", "source", "--engine", "spark")
    assert service.digests() == digests
    inputs = [each for each in read if each.at in ends]
    assert {(each.at, each.start, each.is_rest) for each in inputs} == {
        (at, end, True) for at, end in archived.copied.items()
    }
    assert asked_of_sql(service) == tables
    assert asked_of_sql(service, "--engine", "spark") == tables


def test_p2_where_the_archive_has_all_of_it_spark_reads_nothing_of_kafka(
    spark: OpenSession, archived: Archived, read: list[Range]
) -> None:
    service = archived.service
    rows, found, digests = frame_rows(spark, service), backtested(service), service.digests()
    assert run("archive", service.config).exit_code == 0
    archived.take_away({at: end for at, (_, end) in archived.bounds().items()})
    read.clear()
    assert frame_rows(spark, service) == rows
    assert backtested(service) == found
    restored(service, "--from", "source", "--engine", "spark")
    assert service.digests() == digests
    assert not [each for each in read if each.at in archived.places]


def test_p8_a_missing_file_is_refused_by_jobs_and_frames(spark: OpenSession, archived: Archived) -> None:
    service = archived.service
    rows = frame_rows(spark, service)
    archived.take_away(archived.copied)
    names = sorted((service.config.parent / "cold").rglob(f"{archived.places[0].topic}/*/*/*.parquet"))
    names[1].unlink()
    first, following = (int(part) for part in names[1].stem.split("-"))
    done = run("restore", service.config, "--from", "source", "--engine", "spark")
    assert (done.exit_code, "archive-gap: " in done.stderr) == (2, True), done.output
    with pytest.raises(PySparkException, match=f"archive-gap: .* offsets {first:,} to {following - 1:,} of "):
        frame_rows(spark, service)
    some = frame_rows(spark, service, failOnDataLoss="false")
    assert 0 < len(some) < len(rows)
    assert all(row in rows for row in some)


def test_p2_by_our_own_reader_it_is_the_same(
    spark: OpenSession, archived: Archived, read: list[Range], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SAMOVAR_TUNABLES__SPARK_CONNECTOR", "false")
    found, digests = backtested(archived.service), archived.service.digests()
    archived.take_away({at: end // 2 for at, end in archived.copied.items()})
    assert backtested(archived.service) == found
    restored(archived.service, "--from", "source", "--engine", "spark")
    assert archived.service.digests() == digests
    assert not read
