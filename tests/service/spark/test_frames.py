"""`spark.read.format("samovar")`: what a service's topics hold, with real columns, and as its own readers show it."""

from __future__ import annotations

import json
import operator
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import samovar
from samovar.changelog.cursors import read_all
from samovar.changelog.formats.record import POSITION
from samovar.changelog.log import Append, TopicPartition, TopicSpec
from samovar.changelog.spark.errors import translated
from samovar.changelog.spark.session import OpenSession
from samovar.changelog.spark.source import Condition, Frame, conditions_in
from samovar.common.errors import Refused
from samovar.service.spark.frames.events import _typed
from samovar.service.spark.frames.frame import frame_of
from tests.support.project import ROOT
from tests.support.small_service import START, Service, make, many, purchase, run

SESSIONS = """
rule: visits
severity: low
tags: [web]
match: |
  session by card with gap=10m
    [purchase where amount > 0]
emit:
  spent: sum(amount)
  from: first(country)
  seen: values(country)
"""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Service:
    """100 events, a message that is none, and a rule that was added later."""
    made = make(tmp_path_factory.mktemp("frames") / "s")
    made.process(many(100))
    with made.log() as log:
        log.append([Append(topic="purchase", records=[(b"c1", b"{no json")])])
    (made.config.parent / "rules" / "visits.yml").write_text(SESSIONS)
    made.process([purchase("c1", 4_000 + 10 * n, 30, "US") for n in range(3)] + [purchase("c1", 9_000, 5, "US")])
    made.settle()
    return made


@dataclass
class Row:
    """One row of a frame, its columns as attributes."""

    columns: dict[str, Any]

    def __getattr__(self, name: str) -> Any:
        return self.columns[name]


def rows_of(service: Service, source: str, **options: str) -> list[Row]:
    """A frame as its own reader gives it, with no Spark around it."""
    frame = frame_of({"config": str(service.config), "source": source, **options})
    batches = [batch for part in frame.parts for batch in frame.read(part)]
    return [Row(row) for row in pa.Table.from_batches(batches, frame.schema).to_pylist()]


def lines(service: Service, topic: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run("read", service.config, topic, "--json").stdout.splitlines()]


# ---------------------------------------------------------------- inputs, alerts, letters


def test_inputs_have_a_column_a_field(service: Service) -> None:
    rows = sorted(rows_of(service, "inputs/purchase"), key=lambda row: (row._partition, row._offset))
    told = sorted(lines(service, "purchase"), key=lambda line: (line["partition"], line["offset"]))
    assert len(rows) == len(told) == 105
    for row, line in zip(rows, told, strict=True):
        assert (row._partition, row._offset, row._key) == (line["partition"], line["offset"], line["key"])
        if isinstance(line["value"], dict):
            event = line["value"]
            assert (row.card, row.amount, row.country) == (event["card"], event["amount"], event["country"])
            assert row._event_time == moment(event["ts"])
            assert row._error is None
        else:
            assert (row._error, row.card, row._event_time) == ("NOT_JSON", None, None)


def moment(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


def test_a_key_partitions_and_places_reach_the_reader(service: Service) -> None:
    own = service.partition("c1")
    assert {row._key for row in rows_of(service, "inputs/purchase", key="c1")} == {"c1"}
    assert {row._partition for row in rows_of(service, "inputs/purchase", partitions="1")} == {1}
    some = rows_of(service, "inputs/purchase", partitions=str(own), **{"from": "3", "to": "7"})
    assert [row._offset for row in some] == [3, 4, 5, 6]
    assert all(row._value.startswith("{") for row in rows_of(service, "inputs/purchase", raw="true", key="c1"))


def test_a_large_partition_is_cut_for_several_tasks(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = [row.columns for row in rows_of(service, "inputs/purchase")]
    monkeypatch.setattr("samovar.service.spark.frames.frame.SPLIT", 10)
    frame = frame_of({"config": str(service.config), "source": "inputs/purchase"})
    assert len(frame.parts) >= 10
    assert [row.columns for row in rows_of(service, "inputs/purchase")] == whole


def test_alerts_have_the_severity_of_their_rule(service: Service) -> None:
    told = {line["value"]["id"]: line["value"] for line in lines(service, "alerts")}
    rows = rows_of(service, "alerts")
    assert {row.id for row in rows} == set(told)
    for row in rows:
        alert = told[row.id]
        assert (row.rule, row.version, row.message) == (alert["rule"], alert["version"], alert.get("message"))
        assert dict(row.key) == alert["key"]
        assert (row.start, row.at) == (moment(alert["start"]), moment(alert["at"]))
        assert json.loads(row.emit) == alert["emit"]
        assert [(each["step"], each["offset"]) for each in row.events] == [
            (step, offset) for step, events in alert["steps"].items() for _, _, offset in events
        ]
    visits = [row for row in rows if row.rule == "visits"]
    assert {(row.severity, tuple(row.tags)) for row in visits} == {("low", ("web",))}


def test_sessions_are_the_alerts_of_session_rules(service: Service) -> None:
    rows = rows_of(service, "sessions")
    assert 20_000 in [row.duration_ms for row in rows if dict(row.key) == {"card": "c1"}]
    assert {row.rule for row in rows} == {"visits"}


def test_alerts_of_one_rule_emit_real_columns(service: Service) -> None:
    """With the types that the rule gives them, and never a wrong one: what does not fit is null, or text."""
    for source in ("alerts/visits", "sessions/visits"):
        frame = frame_of({"config": str(service.config), "source": source})
        kinds = {each.name: str(each.type) for each in frame.schema.field("emit").type}
        assert kinds == {"spent": "double", "from": "string", "seen": "list<item: string>", "count": "int64"}
        told = {line["value"]["id"]: line["value"]["emit"] for line in lines(service, "alerts")}
        rows = rows_of(service, source)
        assert {row.rule for row in rows} == {"visits"}
        assert [row.emit for row in rows] == [told[row.id] for row in rows]
        assert any(row.emit["count"] == 3 and row.emit["spent"] == 90.0 for row in rows)
    assert all(isinstance(row.emit, str) for row in rows_of(service, "alerts/testing"))  # it emits nothing
    assert _typed({"a": 1, "b": "x", "c": 1.5, "d": [1, "y"]}, KINDS) == {
        "a": "1",
        "b": None,
        "c": None,
        "d": ["1", "y"],
    }


KINDS = {"a": "string", "b": "double", "c": "bigint", "d": "array<string>"}


def test_dead_letters(service: Service) -> None:
    (row,) = rows_of(service, "dead-letters")
    assert (row.reason, row.topic, row.text, row.value) == ("NOT_JSON", "purchase", "{no json", b"{no json")


def test_labels_may_not_be_there_yet(service: Service) -> None:
    assert rows_of(service, "labels") == []
    label = {"alert": "a1", "rule": "testing", "key": "c1", "label": "confirmed", "by": "ann", "at": START, "note": ""}
    with service.log() as log:
        log.create([TopicSpec("s-labels", 1)])
        log.append([Append(topic="s-labels", records=[(b"a1", json.dumps(label).encode())])])
    (row,) = rows_of(service, "labels")
    assert (row.alert, row.label, row.by, row.at) == ("a1", "confirmed", "ann", moment(START))


# ---------------------------------------------------------------- states


def test_the_latest_states_are_those_of_state_get(service: Service) -> None:
    by_key: dict[str, list[Any]] = {}
    for row in rows_of(service, "changelog"):
        by_key.setdefault(row.key, []).append(row)
    assert {f"c{n}" for n in range(7)} <= set(by_key)
    for key, rows in by_key.items():
        (held,) = json.loads(run("state", "get", service.config, key, "--json").stdout)
        rules = {each["rule"]: each for each in held["rules"]}
        assert {row.name for row in rows if row.kind == "rule"} == set(rules)
        for row in rows:
            if row.kind == "rule":
                partials = rules[row.name]["partials"]
                assert [(each["step"], each["events"]) for each in row.partials] == [
                    (each["step"], each["events"]) for each in partials
                ]
                assert [each["since"] for each in row.partials] == [moment(each["since"]) for each in partials]
            else:
                (history,) = [each for each in held["histories"] if each["call"] == row.name]
                assert [json.loads(each["value"]) for each in row.events] == [
                    each["value"] for each in history["events"]
                ]


def test_one_key_of_a_changelog(service: Service) -> None:
    assert {row.key for row in rows_of(service, "changelog", key="c2")} == {"c2"}


def test_every_change_and_the_state_at_a_moment(service: Service) -> None:
    """The last change of each state is its latest value; `to` an offset gives what stood there."""
    changes = sorted(rows_of(service, "changelog", mode="changes", key="c3"), key=lambda row: row._offset)
    told = json.loads(run("state", "history", service.config, "c3", "--json").stdout)
    offsets = sorted({row._offset for row in changes})
    assert {each["offset"] for each in told} <= set(offsets)  # which tells of a key's commits, not of each state's
    own = str(service.partition("c3"))
    ends = ends_of(service, int(own))
    for end in (min(each for each in ends if each > offsets[0]), ends[-1]):
        latest: dict[Any, list[Any] | None] = {}
        for row in changes:
            if row._offset < end:
                latest[row.kind, row.name] = None if row.deleted else [row.columns[name] for name in SHOWN]
        then = rows_of(service, "changelog", key="c3", partitions=own, to=str(end))
        assert {(row.kind, row.name): [row.columns[name] for name in SHOWN] for row in then} == {
            name: shown for name, shown in latest.items() if shown is not None
        }
    later = rows_of(service, "changelog", mode="changes", key="c3", **{"from": str(offsets[0] + 1)})
    assert {row._offset for row in later} == set(offsets) - {offsets[0]}


SHOWN = ("partials", "events", "due", "alerted")


def ends_of(service: Service, partition: int) -> list[int]:
    """Where commits of a changelog end."""
    with service.log() as log:
        records = read_all(log, TopicPartition("s-changelog", partition))
    return [
        int(offset) + 1
        for each in records
        for offset, (key, _) in zip(each.offsets, each.pairs(), strict=True)
        if key == POSITION
    ]


# ---------------------------------------------------------------- through Spark


def test_spark_reads_the_same(spark: OpenSession, service: Service) -> None:
    """With the types that the frame says, from all tasks; and SQL works on it."""
    samovar.register_spark(spark.spark)
    reader = spark.spark.read.format("samovar").option("config", str(service.config))
    visits = (
        reader.option("source", "alerts/visits").load().selectExpr("emit.spent + 1 as more", "emit.seen[0] as first")
    )
    assert (90.0 + 1, "US") in list(map(tuple, visits.collect()))
    for source in ("inputs/purchase", "alerts", "changelog"):
        frame = reader.option("source", source).load()
        told = rows_of(service, source)
        assert frame.columns == list(told[0].columns)
        place = (
            (lambda row: row.id) if source == "alerts" else (lambda row: (row._partition, row._offset, str(row._key)))
        )
        if source != "changelog":
            assert sorted(map(place, frame.collect())) == sorted(map(place, told))
        else:
            found = frame.selectExpr("key", "name", "kind", "size(partials) as live").collect()
            assert sorted(map(str, ((row.key, row.name, row.kind) for row in found))) == sorted(
                map(str, ((row.key, row.name, row.kind) for row in told))
            )
    reader.option("source", "inputs/purchase").load().createOrReplaceTempView("purchases")
    sql = "select card, sum(amount) as spent from purchases where _error is null group by card order by card"
    (first, *_) = spark.spark.sql(sql).collect()
    spent = sum(event["amount"] for event in many(100) if event["card"] == "c0")
    assert (first.card, first.spent) == ("c0", pytest.approx(spent))


def test_a_schema_chooses_columns_and_nothing_else(spark: OpenSession, service: Service) -> None:
    samovar.register_spark(spark.spark)
    options = {"config": str(service.config), "source": "alerts"}

    def read(schema: str) -> list[Any]:
        with translated(spark.log):
            return list(spark.spark.read.format("samovar").schema(schema).options(**options).load().collect())

    told = sorted((row.rule, row._offset) for row in rows_of(service, "alerts"))
    assert sorted(map(tuple, read("rule string, _offset bigint"))) == told
    for schema, said in (
        ("rule string, ofset bigint", "`ofset`"),
        ("_offset string", "`_offset` is string, and it is bigint"),
    ):
        with pytest.raises(Refused) as refused:
            read(schema)
        assert refused.value.code == "frame-schema"
        assert said in refused.value.what


def test_sql_makes_a_temporary_view_and_no_table(spark: OpenSession, service: Service) -> None:
    samovar.register_spark(spark.spark)
    options = f"using samovar options (config '{service.config}', source 'alerts')"
    spark.spark.sql(f"create or replace temporary view found {options}")
    (row,) = spark.spark.sql("select count(*) as n from found").collect()
    assert row.n == len(rows_of(service, "alerts"))
    with pytest.raises(Refused, match="create temporary view NAME") as refused, translated(spark.log):
        spark.spark.sql(f"create table kept {options}")
    assert refused.value.code == "frame-option"
    # With columns of its own Spark asks nobody before it is read.
    spark.spark.sql(f"create table kept (rule string) {options}")
    try:
        with pytest.raises(Refused, match="create temporary view NAME"), translated(spark.log):
            spark.spark.table("kept").collect()
    finally:
        spark.spark.sql("drop table kept")


UNACTIVATED = """
import sys
from pyspark.sql import SparkSession
import samovar
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
samovar.register_spark(spark)
print(spark.read.format("samovar").options(config=sys.argv[1], source="alerts").load().count(), "alerts")
spark.stop()
"""


def test_a_virtual_environment_need_not_be_activated(service: Service, tmp_path: Path) -> None:
    """The first `python3` of the path is not ours: executors have this one all the same."""
    (tmp_path / "python3").write_text("#!/bin/sh\necho not this one >&2\nexit 1\n")
    (tmp_path / "python3").chmod(0o755)
    java = shutil.which("java")
    assert java is not None
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK", "VIRTUAL_ENV"))}
    path = os.pathsep.join([str(tmp_path), str(Path(java).parent), "/usr/bin", "/bin"])
    command = [sys.executable, "-c", UNACTIVATED, str(service.config)]
    done = subprocess.run(
        command,
        env={**kept, "PATH": path, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.stdout == f"{len(rows_of(service, 'alerts'))} alerts\n", done.stderr


# ---------------------------------------------------------------- filters


@dataclass(frozen=True)
class EqualTo:
    """As Spark 4.1 has it; 4.0 pushes no filters."""

    attribute: tuple[str, ...]
    value: Any


@dataclass(frozen=True)
class In(EqualTo): ...


@dataclass(frozen=True)
class GreaterThan(EqualTo): ...


@dataclass(frozen=True)
class GreaterThanOrEqual(EqualTo): ...


@dataclass(frozen=True)
class LessThan(EqualTo): ...


@dataclass(frozen=True)
class LessThanOrEqual(EqualTo): ...


@dataclass(frozen=True)
class StringContains(EqualTo): ...


HOLDS: dict[type, Callable[[Any, Any], bool]] = {
    EqualTo: operator.eq, In: lambda left, right: left in right, GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge, LessThan: operator.lt, LessThanOrEqual: operator.le,
    StringContains: lambda left, right: right in (left or ""),
}  # fmt: skip


@pytest.mark.parametrize(
    ("source", "options"),
    [("inputs/purchase", {}), ("alerts", {}), ("changelog", {}), ("changelog", {"mode": "changes"})],
)
def test_a_narrowed_frame_has_all_rows_that_are_wanted(service: Service, source: str, options: dict[str, str]) -> None:
    """And reads fewer. Spark filters what is left itself."""
    frame = frame_of({"config": str(service.config), "source": source, **options})
    whole = _rows_in(frame)
    middle = sorted(row["_offset"] for row in whole)[len(whole) // 2]
    times = sorted(row["_time"] for row in whole if row["_time"] is not None)
    stage = [EqualTo(("_stage",), "main")] if source == "changelog" else []
    asked: list[list[Any]] = [
        [EqualTo(("_partition",), 1), *stage],
        [In(("_partition",), [0, 5])],
        [GreaterThan(("_offset",), middle)],
        [GreaterThanOrEqual(("_offset",), middle), LessThan(("_offset",), middle + 3)],
        [LessThanOrEqual(("_offset",), middle), EqualTo(("_partition",), 0)],
        [EqualTo(("_offset",), middle)],
    ]
    if times:
        asked += [[GreaterThan(("_time",), times[len(times) // 2])], [LessThan(("_time",), times[-1])]]
    if "_key" in whole[0]:
        asked += [[EqualTo(("_key",), "c1")], [StringContains(("_key",), "1")]]
    for filters in asked:
        rows = [row for row in whole if _holds(row, filters)]
        found = _rows_in(frame.narrowed(conditions_in(filters)))
        assert [row for row in found if _holds(row, filters)] == rows, filters
        assert len(found) <= len(whole)
    assert len(_rows_in(frame.narrowed([Condition("_partition", "=", 1)]))) < len(whole)
    if source != "changelog":
        assert [row["_offset"] for row in _rows_in(frame.narrowed([Condition("_offset", "=", 0)]))] == [0, 0]
        assert {row["_key"] for row in _rows_in(frame.narrowed([Condition("_key", "=", "c1")]))} == {"c1"}
        assert _rows_in(frame.narrowed([Condition("_time", ">", moment(4_000_000_000_000))])) == []


def _holds(row: dict[str, Any], filters: list[Any]) -> bool:
    values = [(row[each.attribute[0]], each) for each in filters]
    return all(value is not None and HOLDS[type(each)](value, each.value) for value, each in values)


def _rows_in(frame: Frame) -> list[dict[str, Any]]:
    batches = [batch for part in frame.parts for batch in frame.read(part)]
    found: list[dict[str, Any]] = pa.Table.from_batches(batches, frame.schema).to_pylist()
    return found


# ---------------------------------------------------------------- refusals


def test_places_are_said_as_of_kafkas_source_too(service: Service) -> None:
    rows = rows_of(service, "inputs/purchase")
    first, second = ([row for row in rows if row._partition == number] for number in (0, 1))

    def places(**options: str) -> list[tuple[int, int]]:
        return sorted((row._partition, row._offset) for row in rows_of(service, "inputs/purchase", **options))

    assert places(startingOffsets="earliest", endingOffsets="latest") == places()
    both = {"startingOffsets": '{"purchase": {"0": 2, "1": -1}}', "endingOffsets": '{"purchase": {"0": 4, "1": -2}}'}
    assert places(**both) == [(0, 2), (0, 3)]
    assert len(places(startingOffsets='{"purchase": {"0": -2, "1": -1}}')) == len(first)
    times = sorted({int(row._time.timestamp() * 1000) for row in rows})
    later = {"startingTimestamp": str(times[-1])}
    assert places(**later) == places(**{"from": datetime.fromtimestamp(times[-1] / 1000, UTC).isoformat()})
    assert places(endingTimestamp=str(times[0])) == []
    assert len(places(startingTimestamp="0")) == len(first) + len(second)


@pytest.mark.parametrize(
    ("source", "options", "code", "word"),
    [
        ("inputs/purchases", {}, "frame-option", "purchase"),
        ("alert", {}, "frame-option", "alerts"),
        ("alerts/visit", {}, "frame-option", "visits"),
        ("sessions/testing", {}, "frame-option", "visits"),
        ("alerts", {"partitons": "1"}, "frame-option", "partitions"),
        ("alerts", {"partitions": "x"}, "frame-option", "0,3"),
        ("alerts", {"partitions": "9"}, "unknown-partition", "0 to"),
        ("alerts", {"from": "yesterday"}, "bad-place", "begin"),
        ("alerts", {"from": "3", "startingOffsets": "3"}, "frame-option", "`startingOffsets` say the same"),
        ("alerts", {"startingTimestamp": "now"}, "frame-option", "from=2026"),
        ("alerts", {"startingOffsets": '{"s-alerts": {"0": 1}}'}, "frame-option", "for each partition"),
        ("changelog", {"mode": "all"}, "frame-option", "latest or changes"),
        ("changelog", {"from": "3"}, "frame-option", "`to`"),
        ("changelog", {"stage": "by-user"}, "unknown-stage", "main"),
        ("alerts", {"mode": "changes"}, "frame-option", "begin the next frame with `spark.read` again"),
        ("inputs/purchase", {"raw": "yes"}, "frame-option", "true or false"),
        ("inputs/purchase", {"failOnDataLoss": "maybe"}, "frame-option", "`failOnDataLoss` is `maybe`"),
        ("inputs/purchase", {"from": "5", "startingOffsets": "latest"}, "frame-option", "Leave one of them out"),
        ("inputs/purchase", {"stage": "main"}, "frame-option", "`stage` is of changelog"),
        ("alerts", {"raw": "true"}, "frame-option", "`raw` is of inputs"),
    ],
)
def test_what_cannot_be_read(service: Service, source: str, options: dict[str, str], code: str, word: str) -> None:
    with pytest.raises(Refused) as refused:
        frame_of({"config": str(service.config), "source": source, **options})
    assert refused.value.code == code
    assert word in str(refused.value)


def test_a_service_that_never_ran(spark: OpenSession, tmp_path: Path) -> None:
    """On its way through Spark a refusal stays what it is."""
    samovar.register_spark(spark.spark)
    config = str(make(tmp_path / "new").config)
    for source in ("changelog", "inputs/purchase"):
        with pytest.raises(Refused) as refused:
            frame_of({"config": config, "source": source})
        assert refused.value.code == "topic-missing"
    with pytest.raises(Refused) as refused, translated(spark.log):
        spark.spark.read.format("samovar").options(config=config, source="alerts").load().collect()
    assert refused.value == Refused(
        "topic-missing", "the topic s-alerts does not exist yet", "`samovar run` and `samovar produce` make it."
    )
