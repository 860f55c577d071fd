"""A Spark session as commands use it: found open, told how far jobs are, errors in our words, Ctrl-C."""

from __future__ import annotations

import json
import signal
import sys
import threading
import zipfile
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pytest

from samovar.changelog.broker import jars
from samovar.changelog.broker.jars import Java
from samovar.changelog.spark import jars as spark_jars
from samovar.changelog.spark.errors import explained
from samovar.changelog.spark.progress import JobProgress, Ticker, ticked
from samovar.changelog.spark.session import OpenSession, starting
from samovar.common.errors import Refused

Batches = Iterable[pa.RecordBatch]


def test_a_session_that_is_open_is_used_and_stays_open(spark: OpenSession) -> None:
    with starting("another") as start:
        assert start.ready() is spark
    assert spark.spark.range(3).count() == 3


def test_a_job_tells_how_far_it_is(spark: OpenSession, tmp_path: Path) -> None:
    """The second task ends only when the first one's end was told: no job is so quick that nothing is told."""
    seen, folder = [], str(tmp_path)
    (tmp_path / "ticks").mkdir()

    def work(batches: Batches) -> Batches:
        for batch in batches:
            first = batch.column(0)[0].as_py()
            Ticker(f"{folder}/ticks", str(first))(batch.num_rows, last=True)
            while not Path(folder, "told").exists():
                pass
            yield batch

    def on_progress(now: JobProgress) -> None:
        seen.append(now)
        if now.rows == 10:
            (tmp_path / "told").touch()

    frame = spark.spark.range(0, 10, 1, 2).mapInArrow(work, "id long")
    count = spark.run("counting", lambda: len(frame.collect()), on_progress, total=20, ticks=tmp_path / "ticks")
    assert count == 10
    told = seen[-1]
    assert (told.rows, told.tasks, told.stages) == (10, 2, 1)
    assert told.left_s == pytest.approx(told.seconds)
    assert "counting: stage 1 of 1" in told.text()
    assert "10 of 20 rows" in told.text()
    assert told.data()["rows_per_s"] == round(10 / told.seconds)


def test_ticks_of_all_tasks_are_added(tmp_path: Path) -> None:
    for name, rows in (("a", 3), ("b", 4)):
        ticker = Ticker(str(tmp_path), name)
        ticker(1)
        ticker(rows, last=True)
    assert ticked(tmp_path) == 7


def test_a_refusal_of_a_task_is_the_job_s(spark: OpenSession) -> None:
    def work(batches: Batches) -> Batches:
        for _ in batches:
            raise Refused("topic-missing", "there is no topic `x`", "Make it.", "seen by a task")
        yield from ()

    frame = spark.spark.range(2).mapInArrow(work, "id long")
    with pytest.raises(Refused) as refused:
        spark.run("refusing", frame.collect)
    assert refused.value == Refused("topic-missing", "there is no topic `x`", "Make it.", "seen by a task")


def test_an_error_of_spark_is_short_and_coded(spark: OpenSession) -> None:
    with pytest.raises(Refused) as refused:
        spark.run("asking", lambda: spark.spark.sql("select a from nowhere").collect())
    assert refused.value.code == "spark-job-failed"
    assert "nowhere" in refused.value.detail
    assert len(str(refused.value).splitlines()) == 3


def test_an_unknown_topic(spark: OpenSession, kafka: str) -> None:
    read = spark.spark.read.format("kafka").option("kafka.bootstrap.servers", kafka)
    frame = read.option("assign", '{"not-there": [0]}').option("startingOffsets", '{"not-there": {"0": 0}}')
    with pytest.raises(Refused) as refused:
        spark.run("reading", lambda: frame.load().collect())
    assert refused.value.code == "topic-missing"


def test_ctrl_c_cancels_the_job(spark: OpenSession, tmp_path: Path) -> None:
    begun = tmp_path / "begun"

    def work(batches: Batches) -> Batches:
        begun.touch()
        threading.Event().wait()  # for ever: only a cancelled job ends
        yield from batches

    def on_progress(_now: JobProgress) -> None:
        if begun.exists():
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        spark.run("waiting", spark.spark.range(1).mapInArrow(work, "id long").collect, on_progress)
    assert not spark.spark.sparkContext.statusTracker().getActiveJobsIds()
    assert spark.spark.range(3).count() == 3


def test_no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("samovar.changelog.spark.session._existing_session", lambda: None)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Refused, match="which Spark needs") as refused, starting("none"):
        pass
    assert refused.value.code == "java-missing"


def test_no_pyspark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    with pytest.raises(Refused, match=r"samovar\[spark\]") as refused, starting("none"):
        pass
    assert refused.value.code == "spark-missing"


def test_a_connector_that_nobody_can_fetch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(jars, "ivy_commands", lambda *_: [])
    with pytest.raises(Refused) as refused:
        spark_jars.connector_jars(Java("java", "17"), lambda _: None)
    assert refused.value.code == "spark-connector-missing"
    assert str(tmp_path) in refused.value.hint


def test_the_connector_for_a_submitted_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A Java that spark-submit started takes no jars later: deploy/spark-submit.sh asks for them before."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = jars.cache_folder("spark", spark_jars.SPARK)
    folder.mkdir(parents=True)
    assert spark_jars.main() == 2
    assert "Delete" in capsys.readouterr().err
    for name in (f"{spark_jars.CONNECTOR[1]}-{spark_jars.SPARK}.jar", "kafka-clients-3.9.0.jar"):
        (folder / name).touch()
    assert spark_jars.main() == 0
    told = capsys.readouterr().out.strip().split(",")
    assert [Path(each).name for each in told] == [
        "kafka-clients-3.9.0.jar",
        f"{spark_jars.CONNECTOR[1]}-{spark_jars.SPARK}.jar",
    ]


def test_a_session_without_the_connector() -> None:
    """In Spark's own words, as its jar has them: the tests' session has the connector."""
    (jar,) = spark_jars._pyspark().glob("jars/spark-common-utils_*.jar")
    with zipfile.ZipFile(jar) as inside:
        known = json.loads(inside.read("error/error-conditions.json"))
    texts = [" ".join(each["message"]).replace("<provider>", "kafka") for each in known.values()]
    told = [text for text in texts if "data source: kafka" in text and "Avro" not in text]
    assert len(told) == 2
    for text in told:
        refused = explained(Exception(text), None)
        assert refused.code == "spark-connector-missing"
        assert "--packages org.apache.spark:spark-sql-kafka-0-10_2.13" in refused.hint


def test_only_jars_that_spark_lacks_are_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "samovar" / "spark" / spark_jars.SPARK
    folder.mkdir(parents=True)
    names = [f"spark-sql-kafka-0-10_2.13-{spark_jars.SPARK}.jar", "kafka-clients-3.9.0.jar", "slf4j-api-1.7.36.jar"]
    for name in names:
        (folder / name).touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = spark_jars.connector_jars(Java("java", "17"), lambda _: None)
    assert sorted(jar.name for jar in found) == sorted(names[:2])
