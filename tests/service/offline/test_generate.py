"""The generated streams: the same bytes every time, in order, with the fields of the schema, honestly labelled."""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from samovar.service.offline.generate import START_MS, generate, generate_blocks, write
from samovar.service.offline.synth import plants, sessions
from samovar.service.offline.synth.world import Label

EVENTS, KEYS, SEED = 60_000, 3_000, 7
KINDS = {"fraud": plants.KINDS, "sessions": sessions.KINDS}
KEY = {"fraud": "user", "sessions": "visitor"}
PYTHON_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "double": (int, float),
    "long": (int,),
    "boolean": (bool,),
}


def labelled(stream: str, events: int, keys: int) -> tuple[list[str], list[Label | None]]:
    pairs = [pair for block in generate_blocks(stream, events, keys, SEED) for pair in block]
    return [line for line, _ in pairs], [label for _, label in pairs]


@pytest.fixture(scope="module", params=["fraud", "sessions"])
def stream(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def lines(stream: str) -> list[str]:
    return list(generate(stream, EVENTS, KEYS, SEED))


@pytest.fixture(scope="module")
def labels(stream: str) -> list[Label | None]:
    return labelled(stream, EVENTS, KEYS)[1]


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
        given = event.keys() - {"type", "ts"}
        assert given <= fields.keys()
        assert fields.keys() - given <= optional
        for name in given:
            assert isinstance(event[name], PYTHON_TYPES[fields[name]]), (name, event)


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


def test_every_kind_is_planted(stream: str, labels: list[Label | None]) -> None:
    assert {label[0] for label in labels if label} == set(KINDS[stream])


def test_an_incident_has_one_kind_and_its_own_id(labels: list[Label | None]) -> None:
    kinds: dict[str, set[str]] = {}
    for label in filter(None, labels):
        kinds.setdefault(label[1], set()).add(label[0])
    assert all(len(found) == 1 for found in kinds.values())


def test_one_incident_with_about_a_thousand_events() -> None:
    labels = labelled("fraud", EVENTS, KEYS)[1]
    assert len({label[1] for label in labels if label}) == EVENTS // 1_020
    assert 0 < sum(label is not None for label in labels) < 0.02 * EVENTS  # most events are honest


# What a rule of each kind is by, where that can have a life before the incident.
BY = {
    **dict.fromkeys(("card-testing", "impossible-travel", "velocity-count", "velocity-sum", "refund-abuse"), "card"),
    **dict.fromkeys(("account-takeover", "dormant-account", "structuring", "country-hopping"), "user"),
    "payment-without-login": "user",
    "card-farm": "merchant",
    "mule-account": "to",
    "password-spray": "user",  # its rule is by address: the attacker comes with a new one
    "order-unpaid": "user",  # its rule is by order: every order is new
    "rage-clicks": "visitor",
    "bot-pace": "visitor",
}
WHOLE_VISITS = {"bounce", "cart-abandoned", "funnel-completed"}  # they say what a visit is, from its first event on


def test_keys_have_a_life_before_the_incident(stream: str) -> None:
    lines, labels = labelled(stream, 200_000, 5_000)
    ordinary: Counter[tuple[str, Any]] = Counter()
    first_seen: dict[str, tuple[str, int]] = {}
    for line, label in zip(lines, labels, strict=True):
        event = json.loads(line)
        if label is None:
            ordinary.update((field, event[field]) for field in set(BY.values()) if field in event)
        elif label[0] not in WHOLE_VISITS and label[1] not in first_seen:
            first_seen[label[1]] = label[0], ordinary[BY[label[0]], event[BY[label[0]]]]
    by_kind: dict[str, list[int]] = {}
    for kind, before in first_seen.values():
        by_kind.setdefault(kind, []).append(before)
    assert set(by_kind) == set(KINDS[stream]) - WHOLE_VISITS
    for kind, counts in by_kind.items():
        assert sum(count > 0 for count in counts) >= 0.9 * len(counts), kind


def test_nothing_in_an_event_says_that_it_is_planted(stream: str) -> None:
    """The fields of an event, and how their values look, are those of others too."""
    lines, labels = labelled(stream, EVENTS, KEYS)
    shapes: dict[bool, set[tuple[str, ...]]] = {True: set(), False: set()}
    for line, label in zip(lines, labels, strict=True):
        planted = label is not None and label[0] not in WHOLE_VISITS
        shapes[planted].add(tuple(f"{name}:{shape(value)}" for name, value in json.loads(line).items()))
    assert shapes[True] <= shapes[False]


def shape(value: Any) -> str:
    """A text with all its digits alike; of a number, only that it is one."""
    return re.sub(r"[0-9a-f]{2,}|[0-9]", "#", value) if isinstance(value, str) else type(value).__name__


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


def test_labels_have_a_file_of_their_own(stream: str, tmp_path: Path) -> None:
    plain, packed = tmp_path / "labels.jsonl", tmp_path / "labels.jsonl.gz"
    for path in (plain, packed):
        write(stream, 25_000, KEYS, SEED, disorder_ms=5_000, out=tmp_path / "events.jsonl", labels=path)
    found = [json.loads(line) for line in plain.read_text("utf-8").splitlines()]
    pairs = [pair for block in generate_blocks(stream, 25_000, KEYS, SEED, 5_000) for pair in block]
    assert (tmp_path / "events.jsonl").read_text("utf-8").splitlines() == [line for line, _ in pairs]
    assert [(each["line"], each["kind"], each["incident"]) for each in found] == [
        (number, *label) for number, (_, label) in enumerate(pairs) if label is not None
    ]
    assert gzip.decompress(packed.read_bytes()) == plain.read_bytes()


def test_standard_output(stream: str, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    write(stream, 10, KEYS, SEED)
    assert len(capfdbinary.readouterr().out.splitlines()) == 10


@pytest.mark.parametrize(("kind", "events", "keys"), [("frauds", 1, 1), ("fraud", -1, 1), ("fraud", 1, 0)])
def test_wrong_arguments_are_refused_at_once(kind: str, events: int, keys: int) -> None:
    with pytest.raises(ValueError, match=r"choose one of|must not be negative"):
        generate_blocks(kind, events, keys)
