"""`samovar repartition --engine spark`: the same rows as the local engine, on both logs, through kills and retries."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import uuid
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from samovar.changelog.broker.process import wait_for
from samovar.changelog.cursors import read_all
from samovar.changelog.formats.record import ROW
from samovar.changelog.log import Append, TopicPartition, TopicSpec
from samovar.changelog.spark.connector_log import SparkFeed
from samovar.changelog.spark.progress import Ticker
from samovar.changelog.spark.session import OpenSession
from samovar.common.errors import CommitUnknown, Fenced
from samovar.service.recovery import repartition as repartitions
from samovar.service.recovery.repartition import CopyPart, sole_copier, whole_copy
from samovar.service.spark.jobs import ShippedService
from samovar.service.spark.repartition import _copy
from samovar.service.topology.logs import opened
from samovar.service.topology.topics import marker_of, marker_topic
from tests.service.recovery.test_repartition import LEFTOVERS, PAIRS, SEED, copied, rules_by, serve, unique
from tests.service.recovery.test_repartition_kafka import alerts, grow, process
from tests.support import small_service as small
from tests.support.project import ROOT
from tests.support.random_rules import FIRST_TIME, TYPES, random_events
from tests.support.spark_cluster import MASTER, spark_cluster

ON_SPARK = ("--engine", "spark")
PATIENCE_S = 240.0


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]], Counter[str]]:
    """A service with stages and many keys' states, the events to come, and what it must have found in the end."""
    folder = tmp_path_factory.mktemp("prepared")
    rng = random.Random(SEED)
    rules = rules_by(rng, "u", 3, folder) | rules_by(rng, "v", 2, folder) | PAIRS
    opening = [{"type": "a", "ts": FIRST_TIME - 600_000 + 1_000 * at, "u": f"k{at % 60}", "n": 1} for at in range(200)]
    events = unique([*opening, *random_events(rng, 160, [*TYPES, *"abc"])])
    straight = serve(folder / "straight", 4, rules)
    straight.process(events)
    straight.end()
    serve(folder / "service", 2, rules).process(events[:280])
    return folder / "service", events[280:], straight.results()


def killed(point: str, *command: object) -> None:
    """A command in a process of its own, with a Spark of its own, that ends at a point."""
    environment = {**os.environ, "SAMOVAR_KILL": point}
    done = subprocess.run(
        [sys.executable, "-m", "samovar.service.cli", *map(str, command)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr


def test_rows_and_alerts_are_those_of_the_local_engine(
    spark: OpenSession, prepared: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By digest over the rows of all keys; nothing is compared a second time here."""
    with copied(prepared, tmp_path / "local") as local, copied(prepared, tmp_path / "spark") as service:
        here = local.to(4)["repartitioned"]
        monkeypatch.delattr(repartitions._Copy, "prove")
        there = service.to(4, *ON_SPARK)["repartitioned"]
        assert (there["digests"], there["rows"]) == (here["digests"], here["rows"])
        assert there["rows"] - there["waiting"] > 60
        with service.log() as log:
            assert marker_of(service.settings, log) is None
            assert not log.topics(LEFTOVERS)
        service.process(prepared[1])
        service.end()
        assert service.results() == prepared[2]


@pytest.mark.parametrize("first", ["spark", "local"])
def test_killed_by_one_engine_the_other_goes_on(
    first: str, spark: OpenSession, prepared: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What Spark copied is whole and is not copied again; what one engine followed the other follows further."""
    with copied(prepared, tmp_path / "s") as service:
        service.write_partitions(4)
        command = "repartition", service.config, "--partitions", 4
        if first == "spark":
            killed("repartition.spread", *command, *ON_SPARK, "--master", "local[2]")
            names = [f"{stage}/{partition}" for stage in ("main", "by-v") for partition in (0, 1)]
            with service.log() as log:
                assert all(whole_copy(service.settings, log, name) for name in names)
            monkeypatch.delattr(repartitions._Copy, "_copy_rows")
        else:
            killed("repartition.copied", *command)
        service.write_partitions(2)
        service.process(prepared[1][:40])  # it goes on meanwhile
        service.to(4, *(() if first == "spark" else ON_SPARK))
        service.process(prepared[1][40:])
        service.end()
        assert service.results() == prepared[2]


# ---------------------------------------------------------------- Kafka, and executors that are lost


def on_kafka(folder: Path, kafka: str) -> small.Service:
    """A service whose topic has three partitions, of which it knows two."""
    name, service = f"spread-{uuid.uuid4().hex[:8]}", small.make(folder)
    text = (
        service.config.read_text().replace("service: s", f"service: {name}").replace("{key:", f"{{topic: {name}, key:")
    )
    service.config.write_text(text + f'log: {{kafka: {{bootstrap: "{kafka}"}}}}\n')
    return service


def test_an_executor_that_is_lost_in_the_middle_leaves_nothing_double(
    kafka: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Some of its rows are written, its task is not whole: another executor begins that again, and one more repartition
    by the local engine, back to as many as before, gives the rows that were there.
    """
    straight, service = small.make(tmp_path / "straight"), on_kafka(tmp_path / "s", kafka)
    events = [*small.many(200), *(small.purchase(f"x{number}", 7_200, 3) for number in range(40))]
    process(service, events[:100], tmp_path / "events.jsonl")
    rows = rows_of(service)
    with opened(service.settings) as log:
        assert wait_for(lambda: not log.members(service.settings.service), PATIENCE_S)
    grow(service, kafka)
    with spark_cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        command = "repartition", service.config, "--partitions", 3, *ON_SPARK, "--master", MASTER, "--json"
        done = cluster.run_and_lose_an_executor(*command, at="commit.after")
    assert done.exit_code == 0, done.stderr
    moved = json.loads(done.stdout)["repartitioned"]
    assert rows_of(service) == rows
    assert moved["rows"] >= len(rows)
    process(service, events[100:], tmp_path / "events.jsonl")
    process(straight, events, tmp_path / "events.jsonl")
    assert alerts(service) == alerts(straight)


def rows_of(service: small.Service) -> dict[bytes, bytes]:
    """The rows of all keys, from the changelog."""
    found: dict[bytes, bytes | None] = {}
    topic = f"{service.settings.service}-changelog"
    with opened(service.settings) as log:
        for partition in range(log.topics([topic])[topic].partitions):
            for records in read_all(log, TopicPartition(topic, partition)):
                found |= {row: value for row, value in records.pairs() if row is not None and row[:1] == ROW}
    return {row: value for row, value in found.items() if value is not None}


def test_who_copied_before_can_write_nothing_more(kafka: str, tmp_path: Path) -> None:
    """An attempt that was taken for lost, and lives: its rows would undo what was followed since."""
    service = on_kafka(tmp_path / "s", kafka)
    topic = marker_topic(service.settings.service)
    copied = Append(topic=topic, records=[(b"row", b"1")], partition=0)
    with opened(service.settings) as log, opened(service.settings) as other:
        log.create([TopicSpec(topic, 1, {}, 1)])
        with sole_copier(service.settings, log, "main/0") as before:
            before.transact([copied], {})
            with sole_copier(service.settings, other, "main/0") as now:
                with pytest.raises((Fenced, CommitUnknown)):
                    before.transact([copied], {})
                now.transact([copied], {})
            assert sum(len(records) for records in read_all(log, TopicPartition(topic, 0))) == 2
        log.delete([topic])


def test_a_row_that_an_executor_lost_is_found(
    spark: OpenSession, prepared: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("samovar.service.spark.repartition._copy", _losing)
    with copied(prepared, tmp_path / "s") as service:
        service.write_partitions(4)
        done = small.run("repartition", service.config, "--partitions", 4, *ON_SPARK)
        assert (done.exit_code, "repartition-differs:" in done.stderr) == (2, True), done.output
        service.write_partitions(2)
        assert small.run("repartition", service.config, "--abort").exit_code == 0
        assert small.is_equal(service)


def _losing(shipment: tuple[ShippedService, CopyPart], tick: Ticker, feed: SparkFeed | None) -> None:
    appends = repartitions._appends
    try:
        repartitions._appends = lambda *given: (replace(each, records=each.records[1:]) for each in appends(*given))
        _copy(shipment, tick, feed)
    finally:
        repartitions._appends = appends


def test_a_cluster_cannot_read_the_embedded_log(prepared: Any, tmp_path: Path) -> None:
    with copied(prepared, tmp_path / "s") as service:
        assert "engine-unfit:" in service.to(4, *ON_SPARK, "--master", MASTER, code=2)["error"]
        with service.log() as log:
            assert not log.topics(LEFTOVERS)
