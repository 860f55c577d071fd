"""`samovar.spark.match` on a stream: the service's alerts by their ids, however batches are cut and queries end."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import samovar
import samovar.spark
from samovar.changelog.spark.errors import translated
from samovar.changelog.spark.session import OpenSession
from samovar.common.errors import Refused
from samovar.patterns.engine.matcher import END_OF_TIME
from samovar.patterns.syntax.tree import Rule
from samovar.service.spark.match_stream import BucketMatcher
from tests.service.spark.test_match import OTHERS, STREAMS, moment, service  # noqa: F401 - a fixture
from tests.support.matching import rules_of
from tests.support.random_rules import SLACK_MS, Fields, rules_and_events
from tests.support.small_service import START, Service


def matcher(*rules: Rule, spread: str = "u", type: str = "type") -> BucketMatcher:
    return BucketMatcher(
        rules=rules, topics=("t",), type=type, spread=spread, max_partials=1_000, max_events=10_000, max_matches=1_000
    )


class Spark:
    """What Spark does: it calls groups with rows or whose time has passed, and moves event time between batches."""

    def __init__(self, matcher: BucketMatcher, buckets: int) -> None:
        self.matcher, self.buckets = matcher, buckets
        self.states: dict[int, tuple[bytes, int | None]] = {}
        self.watermark_ms = self.max_ms = 0
        self.found: list[Any] = []

    def take(self, events: list[tuple[int, Fields]]) -> None:
        rows: dict[int, list[str]] = {}
        for offset, event in events:
            bucket = hash(str(event.get("u"))) % self.buckets
            rows.setdefault(bucket, []).append(f"0 0 {offset} {json.dumps({**event, '_ms': event['ts']})}")
        self.max_ms = max([self.max_ms, *(event["ts"] for _, event in events)])
        timed_out = {at for at, (_, call) in self.states.items() if call is not None and call < self.watermark_ms}
        for bucket in sorted(rows.keys() | timed_out):
            state, _ = self.states.pop(bucket, (None, None))
            result = self.matcher(state, rows.get(bucket, []), self.watermark_ms)
            self.found += map(json.loads, result.found)
            if result.state is not None:
                self.states[bucket] = result.state, result.call_at_ms
        self.watermark_ms = max(self.watermark_ms, self.max_ms - SLACK_MS)

    def end(self) -> list[str]:
        self.watermark_ms = END_OF_TIME
        self.take([])
        return sorted(json.dumps(each, sort_keys=True) for each in self.found)


@given(rules_and_events(), st.randoms(use_true_random=False))
def test_matches_do_not_depend_on_batches(case: tuple[str, list[Fields]], rng: Random) -> None:
    """Nor on buckets or restarts: all that goes on is the state's bytes."""
    text, events = case
    (rule,) = rules_of(text)
    is_by_u = "by u\n" in text or "by u " in text
    numbered = list(enumerate(events))
    whole = Spark(matcher(rule), 1)
    whole.take(numbered)
    wanted = whole.end()
    told = samovar.patterns.api.Rules([rule]).run(events, slack=SLACK_MS)
    assert len(wanted) == len(told)
    cut = Spark(matcher(rule), rng.choice((1, 3)) if is_by_u and " by v" not in text else 1)
    while numbered:
        size = rng.randint(1, 12)
        cut.take(numbered[:size])
        numbered = numbered[size:]
        cut.matcher = matcher(rule) if rng.random() < 0.3 else cut.matcher
    assert cut.end() == wanted


# ---------------------------------------------------------------- rules that change


def lines(cards: str, first: int) -> list[str]:
    return [
        f"0 0 {first + n} "
        + json.dumps({"_ms": START + (first + n) * 1_000, "type": "purchase", "card": card, "amount": 1.0})
        for n, card in enumerate(cards)
    ]


COUNT = "rule: {name}\nmatch: |\n  aggregate by card over 1h [purchase where amount < {limit}] having count() == 4\n"


def test_a_changed_rule_begins_anew_and_the_others_go_on() -> None:
    first, second = (rules_of(COUNT.format(name=name, limit=5))[0] for name in ("first", "second"))
    (changed,) = rules_of(COUNT.format(name="second", limit=6))
    state, *_ = matcher(first, second)(None, lines("aaa", 0), START + 100_000)
    again = matcher(first, second)(state, lines("a", 200), END_OF_TIME)
    assert [json.loads(line)["rule"] for line in again.found] == ["first", "second"]
    other = matcher(first, changed)(state, lines("a", 200), END_OF_TIME)
    assert [json.loads(line)["rule"] for line in other.found] == ["first"]


def test_a_checkpoint_of_other_keys_is_refused() -> None:
    (rule,) = rules_of(COUNT.format(name="first", limit=5))
    state, *_ = matcher(rule)(None, lines("aaa", 0), START)
    assert state is not None
    for changed, given_to in ((state, matcher(rule, spread="v")), (b"\x02" + state[1:], matcher(rule))):
        with pytest.raises(Refused) as refused:
            given_to(changed, [], START)
        assert "checkpointLocation" in refused.value.hint


@pytest.mark.parametrize(("buckets", "count", "word"), [(0, 1, "1024"), (8, 0, "load_rules")])
def test_no_buckets_and_no_rules_are_refused(buckets: int, count: int, word: str) -> None:
    nothing: Any = None  # is refused before a frame is looked at
    with pytest.raises(Refused) as refused:
        samovar.spark.match(nothing, rules_of(COUNT.format(name="first", limit=5))[:count], buckets=buckets)
    assert (refused.value.code, word in refused.value.hint) == ("frame-option", True)


def test_a_bucket_of_which_nothing_is_left_has_no_state() -> None:
    (rule,) = rules_of(COUNT.format(name="first", limit=5))
    state, call_at_ms, _ = matcher(rule)(None, lines("a", 0), START + 1)
    assert state is not None
    assert call_at_ms == START + 3_600_000
    assert matcher(rule)(state, [], START + 3_700_000).state is None


# ---------------------------------------------------------------- through Spark

END = moment(START + 9_000_000 - 2_000)  # the last event, less the slack


def test_alerts_are_those_of_the_service(spark: OpenSession, service: Service, tmp_path: Path) -> None:  # noqa: F811
    """Of all rules, whatever they are keyed by; through a batch that fails, and restarts."""
    samovar.register_spark(spark.spark)
    reader = spark.spark.read.format("samovar").option("config", str(service.config))
    late = reader.option("source", "late").load()
    late = late.selectExpr("topic as _topic", "partition as _partition", "offset as _offset")
    live = {row.id: row.asDict(recursive=True) for row in reader.option("source", "alerts").load().collect()}
    rules = samovar.load_rules(service.config.parent / "rules")
    found: dict[int, list[Any]] = {}
    fails_at = 2

    def take(frame: Any, number: int) -> None:
        rows = frame.collect()
        if number == fails_at:
            raise ValueError("told to fail")
        found[number] = rows

    def run() -> None:
        parts = []
        for name in STREAMS:
            stream = spark.spark.readStream.format("samovar").option("config", str(service.config))
            frame = stream.options(source=f"inputs/{name}", maxRecordsPerTrigger="50").load()
            parts.append(frame.selectExpr("*", f"'{name}' as _topic").withWatermark("_event_time", "2 seconds"))
        events = parts[0].unionByName(parts[1], allowMissingColumns=True)
        timely = events.join(late, ["_topic", "_partition", "_offset"], "left_anti")
        matches = samovar.spark.match(timely, rules, topics=STREAMS, buckets=3)
        writer = matches.writeStream.foreachBatch(take).option("checkpointLocation", str(tmp_path / "checkpoint"))
        with translated(spark.log):
            query = writer.start()
            try:
                query.processAllAvailable()
            finally:
                query.stop()

    with pytest.raises(Refused, match="told to fail"):
        run()
    assert set(found) == {0, 1}
    fails_at = -1
    run()
    rows = [row for batch in found.values() for row in batch]
    ours = {row.id: row.asDict(recursive=True) for row in rows}
    assert len(ours) == len(rows)
    assert {row["rule"] for row in ours.values()} >= {"testing", "countries", *OTHERS}
    waits = {id for id, row in live.items() if row["at"] >= END}  # the service was idle, and its event time went on
    assert ours.keys() == live.keys() - waits, [live[id] for id in live.keys() - ours.keys()]
    assert len(waits) < 3
    assert all(row.items() <= live[id].items() for id, row in ours.items())


def test_what_cannot_be_matched(spark: OpenSession, service: Service) -> None:  # noqa: F811
    samovar.register_spark(spark.spark)
    rules = service.config.parent / "rules" / "testing.yml"
    reader = spark.spark.readStream.format("samovar").options(config=str(service.config), source="inputs/purchase")
    stream = reader.load()
    for frame, word in (
        (stream, "withWatermark"),
        (stream.drop("_offset").withWatermark("_event_time", "2 seconds"), "_partition"),
    ):
        with pytest.raises(Refused) as refused:
            samovar.spark.match(frame, rules, topics="purchase")
        assert word in str(refused.value)
