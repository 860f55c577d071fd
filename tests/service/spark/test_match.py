"""`samovar.spark.match`: the matcher on a data frame finds what the service found, by the same ids."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

import samovar
import samovar.spark
from samovar.changelog.spark.session import OpenSession
from samovar.common.errors import Refused
from tests.service.spark.test_frames import SESSIONS
from tests.service.spark.test_streams import of_frame
from tests.support.small_service import START, Service, make, many, purchase

SERVICE = """
service: s
streams:
  purchase: {key: card, partitions: 2, schema: {card: string, amount: double, country: string}, slack: 2s}
  login: {key: card, schema: {card: string, ok: boolean}, slack: 2s}
"""
STREAMS = ("purchase", "login")
OTHERS = {
    "visits": SESSIONS,
    "spread": """
rule: spread
match: |
  aggregate by country over 1m [purchase where true] having distinct(card) >= 4
""",
    "taken": """
rule: taken
match: |
  sequence by card with maxspan=5m
    [login where ok == false] as failed
    [purchase where amount > 5] as bought
""",
    "silent": """
rule: silent
match: |
  sequence by card with maxspan=1m
    [login where ok == false] as failed
    ![purchase where amount > 1000000] as huge
""",
}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Service:
    """Two streams, with events of equal times, and some that came late."""
    made = make(tmp_path_factory.mktemp("match") / "s")
    made.config.write_text(SERVICE)
    for name, text in OTHERS.items():
        (made.config.parent / "rules" / f"{name}.yml").write_text(text)
    made.produce([{"card": f"c{n % 7}", "ok": n % 5 > 0, "ts": START + n * 3_000} for n in range(120)], "login")
    made.process([*many(120), purchase("c1", 5, 900), purchase("c1", 6, 900)])
    made.produce([{"card": f"c{n}", "ok": True, "ts": START + 9_000_000} for n in range(7)], "login")
    made.process([purchase(f"c{n}", 9_000, 1) for n in range(7)])
    made.settle()
    return made


def test_alerts_are_those_of_the_service(spark: OpenSession, service: Service) -> None:
    """All of them with their ids, whatever rules are keyed by; and each row as the frame of alerts has it."""
    samovar.register_spark(spark.spark)
    reader = spark.spark.read.format("samovar").option("config", str(service.config))
    live = reader.option("source", "alerts").load()
    late = reader.option("source", "late").load()
    late = late.selectExpr("topic as _topic", "partition as _partition", "offset as _offset")
    purchases, logins = (
        reader.option("source", f"inputs/{name}").load().selectExpr("*", f"'{name}' as _topic") for name in STREAMS
    )
    events = purchases.unionByName(logins, allowMissingColumns=True)
    assert len(of_frame(service, "late")) == 2
    timely = events.join(late, ["_topic", "_partition", "_offset"], "left_anti")
    rules = samovar.load_rules(service.config.parent / "rules")
    found = samovar.spark.match(timely, rules, topics=STREAMS, flush=False)
    columns = [name for name in live.columns if not name.startswith("_")]
    assert found.columns == columns

    def by_id(frame: Any) -> dict[str, Any]:
        rows = frame.select(columns).collect()
        assert len({row.id for row in rows}) == len(rows)
        return {row.id: row.asDict(recursive=True) for row in rows}

    ours, theirs = by_id(found), by_id(live)
    assert {row["rule"] for row in ours.values()} >= {"testing", "countries", "spread", "taken", "visits", "silent"}
    assert ours.keys() == theirs.keys()
    assert ours == theirs


def test_a_frame_of_ones_own(spark: OpenSession, service: Service) -> None:
    """Structs, times in ms, no coordinates: the matches are those of the rules over the same events."""
    rules = samovar.load_rules(service.config.parent / "rules" / "testing.yml")
    events = [{**event, "amount": float(event["amount"]), "type": "purchase"} for event in many(120)]
    frame = spark.spark.createDataFrame(events)
    found = samovar.spark.match(frame, rules, time="ts", type="type").collect()
    told = rules.run(events)
    assert len(told) > 3
    assert sorted((dict(row.key)["card"], row.start, row.at) for row in found) == sorted(
        (match.key["card"], moment(match.start), moment(match.at)) for match in told
    )


def moment(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000)  # noqa: DTZ006 - as Spark gives them


def test_what_cannot_be_matched(spark: OpenSession, service: Service) -> None:
    rules = service.config.parent / "rules" / "testing.yml"
    frame = spark.spark.createDataFrame([{"card": "c1", "amout": 1.0, "type": "purchase", "ts": "2026-01-05"}])
    in_ms = frame.withColumn("ts", frame.amout.cast("bigint"))
    stream = spark.spark.readStream.format("rate").load()
    for given, options, word in (
        (frame, {}, "no column `_event_time`"),
        (frame, {"time": "ts"}, "that is string"),
        (in_ms, {"time": "ts", "type": "type"}, "did you mean `amout`"),
        (in_ms, {"time": "ts", "type": "type", "topics": ["a", "b"]}, "_topic"),
        (stream, {}, "no column `_event_time`"),
    ):
        with pytest.raises(Refused) as refused:
            samovar.spark.match(given, rules, **options)
        assert word in str(refused.value)
