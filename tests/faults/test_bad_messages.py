"""Ten thousand bad messages of many kinds among good ones, and a key of a million events."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from samovar.changelog.formats.record import ROW
from samovar.changelog.log import Pair
from samovar.service.topology.topics import MAX_LETTER_BYTES, MAX_MESSAGE_BYTES
from tests import oracle
from tests.faults.comparing import at_places, header, shown
from tests.faults.conftest import Making
from tests.faults.harness import Fields, Service, digest_of, make_service
from tests.support.tunables import USUAL

T0 = 1_700_000_000_000
BAD = 10_000
GOOD = 2_000
HUGE = 3_000_000
RULES = {
    "testing": """
rule: testing
match: |
  sequence by card with maxspan=5s
    [buy where amount < 3] as probe with runs=2..
    [buy where amount > 90] as big
emit: {probes: count(probe)}
""",
    "visit": """
rule: visit
match: |
  session by card with gap=400ms [buy where place != "A" and not (ok == false)]
emit: {total: sum(amount)}
""",
}
STREAMS: dict[str, dict[str, Any]] = {
    "buy": {
        "key": "card",
        "schema": {"card": "string", "amount": "double", "place": "string", "ok": "boolean"},
        "idle": "1h",
        "partitions": 2,
    }
}


def with_field(name: str, value: str, number: int) -> bytes:
    """An event of the right shape but for one field, which stands as it is written."""
    fields = {"card": f'"c{number % 9}"', "amount": "2", "place": '"B"', "ts": str(T0)} | {name: value}
    return ("{" + ", ".join(f'"{key}": {text}' for key, text in fields.items() if text) + "}").encode()


def bad_values(number: int) -> Iterator[bytes | None]:
    """One message of every kind; a number makes each of them one of its own."""
    good = with_field("ok", "true", number)
    yield from (None, b"", b" \t ", b"{", b"}", b"null", b"true", str(number).encode(), b'"text"', b"[1, 2]", b"[]")
    yield from (good[:-1], good[1:], good + good, good + b",", b"\xef\xbb\xbf" + good, good.replace(b'"', b"'"))
    yield from (good.replace(b",", b",,", 1), good.replace(b"}", b",}"), b"\x00" + good, b"#" + good, good + b"\x00")
    yield from (good.replace(b"B", b"\xff"), good.replace(b"B", b"\xc3"), good.replace(b"B", b"\xed\xa0\x80"))
    yield from (good.replace(b"B", b"\x01"), good.replace(b"B", b"\\ud800"), good.replace(b"B", b"\\udc00x"))
    yield from (good.replace(b"B", b"\\x"), b"\xff\xfe{\x00}\x00", b"{" * 500 + b"}" * 500, b"[" * 100_000)
    yield from (
        with_field("deep", "[" * 70 + "]" * 70, number),
        with_field("deep", '{"a":' * 70 + "1" + "}" * 70, number),
    )
    for text in ("NaN", "Infinity", "-Infinity", "1e999", "01", "+1", "1.", ".5", "0x10", "1_000", "tru", "undefined"):
        yield with_field("amount", text, number)
    for text in ('"12"', "true", "{}", "[2]", '""'):
        yield with_field("amount", text, number)
    for text in ("5", "1.5", "false", "[]", "{}", "null", ""):
        yield with_field("card", text, number)
    for text in ('"yes"', "1", "[true]"):
        yield with_field("ok", text, number)
    for text in (
        "",
        "null",
        '"soon"',
        '"1700000000000"',
        "true",
        "[]",
        "1e30",
        "4070908800000",
        '"2099-01-01T00:00:00Z"',
    ):
        yield with_field("ts", text, number)


def input_of(random_: random.Random, huge: int) -> list[tuple[Pair, Fields | None]]:
    """Records, each with the event that it is, if it is one."""
    bad: list[bytes | None] = []
    while len(bad) < BAD - 2:
        bad += bad_values(len(bad))
    bad = [*bad[: BAD - 2], b"x" * huge, with_field("amount", '"' + "9" * huge + '"', 1)]
    found: list[tuple[Pair, Fields | None]] = [
        ((random_.choice((b"c1", b"c2", b"", None)), value), None) for value in bad
    ]
    random_.shuffle(found)
    places = sorted(random_.randrange(len(found)) for _ in range(GOOD))
    for number, place in enumerate(reversed(places)):
        found.insert(place, good_record(random_, GOOD - number))
    return found


def good_record(random_: random.Random, number: int) -> tuple[Pair, Fields]:
    card = f"c{random_.randrange(9)}"
    amount, place = random_.choice((1, 2.5, 20, 95)), random_.choice(("A", "B", "\u00fc\U0001f600", ""))
    event = {"card": card, "amount": amount, "place": place, "ts": T0 + number * 100}
    text = json.dumps(event, indent=random_.choice((None, 1)))
    return (random_.choice((card.encode(), None)), text.encode()), event


def test_ten_thousand_bad_messages_are_dead_letters_and_change_nothing(make: Making) -> None:
    """P8: each is there with its own bytes, key and place; P1: the good ones give what they give without the bad."""
    random_ = random.Random(7)
    service = make(RULES, STREAMS)
    huge = HUGE if service.settings.log.embedded else MAX_MESSAGE_BYTES * 9 // 10  # a topic of Kafka's takes no more
    parts = [input_of(random_, huge)[:most] for most in (BAD + GOOD, 500)]
    end = {"card": "end", "ts": T0 + 86_400_000}
    for partition, part in enumerate(parts):
        part.append(((b"end", json.dumps(end).encode()), end))
        service.append_pairs("buy", [pair for pair, _ in part], partition)
    said = service.run_to_end(poll=777)
    check_letters(service, parts)
    bad = sum(event is None for part in parts for _, event in part)
    assert f" {bad:,} dead" in said
    told = [match for partition, part in enumerate(parts) for match in told_of(service, partition, part)]
    assert len(told) > 300
    assert shown(service.alerts()) == shown(told)
    assert service.late() == []


def told_of(service: Service, partition: int, part: list[tuple[Pair, Fields | None]]) -> list[dict[str, Any]]:
    events = [None if event is None else {"type": "buy", **event} for _, event in part]
    places = [[service.settings.streams["buy"].topic, partition, line] for line in range(len(part))]
    found = oracle.run(service.parsed, events).matches
    return [at_places(match, places) for match in found if match["key"] != {"card": "end"}]


def check_letters(service: Service, parts: list[list[tuple[Pair, Fields | None]]]) -> None:
    letters = service.dead()
    found = {(int(header(row, "partition")), int(header(row, "offset"))): row for row in letters}
    assert len(found) == len(letters)
    wanted = {
        (p, line): pair for p, part in enumerate(parts) for line, (pair, event) in enumerate(part) if event is None
    }
    assert found.keys() == wanted.keys(), sorted(map(str, found.keys() ^ wanted.keys()))[:5]
    for place, (key, value) in wanted.items():
        row = found[place]
        assert (row.key, row.value) == (key, value), place
        assert header(row, "topic") == service.settings.streams["buy"].topic
        assert header(row, "exception").isupper()
        assert header(row, "message")
        assert header(row, "stacktrace") == ""
        if value is None:
            assert header(row, "exception") == "NULL_VALUE"


@pytest.mark.parametrize("late", [False, True], ids=["dead", "late"])
def test_a_message_too_large_for_a_letter_does_not_stop_the_service(make_here: Making, late: bool) -> None:
    """P7, P8: of a record that a topic of letters cannot take the beginning is there, and its size."""
    service = make_here(RULES, STREAMS)
    padding = "x" * (MAX_LETTER_BYTES + 10)
    before, after = ({"card": "c", "amount": 1, "ts": T0 + ms} for ms in (5_000, 6_000))
    huge = json.dumps({"card": "c", "amount": 1, "place": padding, "ts": T0}) if late else padding
    service.append("buy", [json.dumps(before).encode(), huge.encode(), json.dumps(after).encode()], 0)
    service.run_to_end()
    assert service.committed() == 3
    (row,) = service.late() if late else service.dead()
    assert header(row, "offset") == "1"
    assert dict(row.headers)["samovar.cut.bytes"] == b"%d" % (len(huge) + 1)
    assert len(row.value or b"") > MAX_MESSAGE_BYTES
    assert huge.encode().startswith(row.value or b"")


def test_a_bad_message_that_only_just_fits_into_its_topic(kafka: str, tmp_path: Path) -> None:
    """P8 on Kafka: another client may write up to the topic's own limit, which is above our client's default."""
    service = make_service(tmp_path / "s", RULES, STREAMS, bootstrap=kafka)
    try:
        service.append("buy", [b'{"card": "c", "amount": 1, "ts": %d}' % T0], 0)
        value = random.Random(1).randbytes(MAX_MESSAGE_BYTES - 1_000)
        producer = Producer({"bootstrap.servers": kafka, "message.max.bytes": 2 * MAX_MESSAGE_BYTES})
        producer.produce(service.settings.streams["buy"].topic, value, partition=0)
        assert producer.flush(30) == 0
        service.run_to_end()
        assert [row.value for row in service.dead()] == [value]
    finally:
        service.close()


def test_a_key_of_a_million_events_stays_small(make_here: Making) -> None:
    """State is bounded by max_events, and no record is larger than its topic takes; restored, it is the same (P2)."""
    service = make_here({"bag": BAG}, {"buy": {**STREAMS["buy"], "partitions": 1}}, max_events=5_000, **USUAL)
    for start in range(0, 1_000_000, 100_000):
        values = [b'{"card":"c","amount":1,"ts":%d}' % (T0 + number) for number in range(start, start + 100_000)]
        service.append("buy", values, 0)
    service.run_to_end()
    with service.store() as store:
        rows = list(store.range(ROW, b"s"))
        digest = digest_of(service.plan, store)
    assert sum(len(key) + len(value) for key, value in rows) < 1_000_000
    service.append("buy", [b'{"card":"c","amount":100,"ts":%d}' % (T0 + 1_000_000)], 0)
    service.wipe()
    restored = service.start(kill="restore.after:1")
    assert restored.ended() == -9
    with service.store() as store:
        assert digest_of(service.plan, store) == digest
    service.run_to_end()
    (alert,) = service.alerts()
    assert alert["emit"] == {"n": 5_000}
    assert len(alert["steps"]["probe"]) == 1_000
    assert max(len(row.key or b"") + len(row.value or b"") for row in service.changelog()) < MAX_MESSAGE_BYTES // 4


BAG = """
rule: bag
match: |
  sequence by card with maxspan=1d
    [buy where amount < 3] as probe with runs=2..
    [buy where amount > 90] as big
emit: {n: count(probe)}
"""
