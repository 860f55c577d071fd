"""The generated streams: the same bytes every time, in order, with the fields of the schema, honestly labelled."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from samovar.service.offline.generate import START_MS, generate, generate_blocks, write
from samovar.service.offline.synth import plants, sessions

EVENTS, KEYS, SEED = 60_000, 3_000, 7
KINDS = {"fraud": plants.KINDS, "sessions": sessions.KINDS}
KEY = {"fraud": "user", "sessions": "visitor"}
PYTHON_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "double": (int, float),
    "long": (int,),
    "boolean": (bool,),
}
LABELS = {"fraud_kind", "fraud_id"}


@pytest.fixture(scope="module", params=["fraud", "sessions"])
def stream(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def lines(stream: str) -> list[str]:
    return list(generate(stream, EVENTS, KEYS, SEED))


@pytest.fixture(scope="module")
def events(lines: list[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines]


def test_same_arguments_give_same_lines(stream: str, lines: list[str]) -> None:
    assert list(generate(stream, EVENTS, KEYS, SEED)) == lines


def test_another_seed_gives_other_lines(stream: str, lines: list[str]) -> None:
    assert list(generate(stream, 1_000, KEYS, SEED + 1)) != lines[:1_000]


@pytest.mark.parametrize("count", [0, 1, 19, 999, 1_000, 1_020, 2_041, 20_000, 20_001, 41_500])
def test_exactly_as_many_as_asked(stream: str, count: int) -> None:
    assert sum(map(len, generate_blocks(stream, count, 50, SEED))) == count


def test_one_key_is_enough(stream: str) -> None:
    assert len(list(generate(stream, 3_000, 1, SEED))) == 3_000


def test_fields_are_those_of_the_schema(stream: str, events: list[dict[str, Any]], root: Path) -> None:
    schema = yaml.safe_load((root / "examples" / stream / "schema.yml").read_text("utf-8"))
    assert {event["type"] for event in events} == set(schema)
    optional = {"lat", "lon"}  # of a purchase in a shop
    for event in events:
        fields = schema[event["type"]]
        given = event.keys() - {"type", "ts"} - LABELS
        assert given <= fields.keys()
        assert fields.keys() - given <= optional
        for name in given:
            assert isinstance(event[name], PYTHON_TYPES[fields[name]]), (name, event)


def test_schema_does_not_know_the_labels(stream: str, root: Path) -> None:
    schema = yaml.safe_load((root / "examples" / stream / "schema.yml").read_text("utf-8"))
    assert not LABELS & {name for fields in schema.values() for name in fields}


def test_times_ascend(events: list[dict[str, Any]]) -> None:
    times = [event["ts"] for event in events]
    assert times == sorted(times)


def test_start_moves_the_whole_stream(stream: str) -> None:
    day = 86_400_000
    first = [json.loads(line)["ts"] for line in generate(stream, 5_000, KEYS, SEED)]
    moved = [json.loads(line)["ts"] for line in generate(stream, 5_000, KEYS, SEED, start_ms=START_MS + 7 * day)]
    assert [ts - 7 * day for ts in moved] == first


@pytest.mark.parametrize("disorder_ms", [1, 5_000, 3_600_000])
def test_disorder_stays_within_its_bound(stream: str, disorder_ms: int) -> None:
    ordered = list(generate(stream, 25_000, KEYS, SEED))
    shuffled = list(generate(stream, 25_000, KEYS, SEED, disorder_ms=disorder_ms))
    assert shuffled != ordered
    assert sorted(shuffled) == sorted(ordered)
    newest = 0
    for line in shuffled:
        ts = json.loads(line)["ts"]
        assert ts >= newest - disorder_ms
        newest = max(newest, ts)


def test_few_keys_are_busy_and_many_are_not(stream: str, events: list[dict[str, Any]]) -> None:
    counts = sorted(Counter(event[KEY[stream]] for event in events).values(), reverse=True)
    average = EVENTS / KEYS
    assert counts[0] > 8 * average
    assert sum(counts[: KEYS // 10]) > 0.3 * EVENTS
    assert sum(count < average for count in counts) > 0.5 * len(counts)


def test_nights_are_quiet_where_the_people_are(events: list[dict[str, Any]]) -> None:
    tokyo = Counter(event["ts"] // 3_600_000 % 24 for event in events if event.get("country") == "JP")
    busy = sum(tokyo[hour] for hour in (3, 9, 10))  # noon, six and seven in the evening
    quiet = sum(tokyo[hour] for hour in (17, 18, 19))  # two, three and four in the night
    assert busy > 3 * quiet


def test_every_kind_is_planted(stream: str, events: list[dict[str, Any]]) -> None:
    assert {event["fraud_kind"] for event in events if "fraud_kind" in event} == set(KINDS[stream])


def test_an_incident_has_one_kind_and_its_own_id(events: list[dict[str, Any]]) -> None:
    kinds: dict[str, set[str]] = {}
    for event in events:
        assert ("fraud_kind" in event) == ("fraud_id" in event)
        if "fraud_id" in event:
            kinds.setdefault(event["fraud_id"], set()).add(event["fraud_kind"])
    assert all(len(found) == 1 for found in kinds.values())


def test_one_incident_with_about_a_thousand_events() -> None:
    events = map(json.loads, generate("fraud", EVENTS, KEYS, SEED))
    assert len({event["fraud_id"] for event in events if "fraud_id" in event}) == EVENTS // 1_020


def test_most_events_of_the_fraud_stream_are_honest() -> None:
    labelled = sum("fraud_id" in line for line in generate("fraud", EVENTS, KEYS, SEED))
    assert 0 < labelled < 0.02 * EVENTS


def test_blocks_stay_small(stream: str) -> None:
    assert max(map(len, generate_blocks(stream, 200_000, KEYS, SEED))) < 40_000


def test_files_have_the_same_lines(stream: str, tmp_path: Path) -> None:
    plain, packed = tmp_path / "events.jsonl", tmp_path / "events.jsonl.gz"
    for path in (plain, packed):
        write(stream, 2_500, KEYS, SEED, out=path)
    expected = "".join(line + "\n" for line in generate(stream, 2_500, KEYS, SEED))
    assert plain.read_text("utf-8") == expected
    assert gzip.decompress(packed.read_bytes()).decode() == expected
    before = packed.read_bytes()
    write(stream, 2_500, KEYS, SEED, out=packed)
    assert packed.read_bytes() == before


def test_standard_output(stream: str, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    write(stream, 10, KEYS, SEED)
    assert len(capfdbinary.readouterr().out.splitlines()) == 10


@pytest.mark.parametrize(("kind", "events", "keys"), [("frauds", 1, 1), ("fraud", -1, 1), ("fraud", 1, 0)])
def test_wrong_arguments_are_refused_at_once(kind: str, events: int, keys: int) -> None:
    with pytest.raises(ValueError, match=r"choose one of|must not be negative"):
        generate_blocks(kind, events, keys)
